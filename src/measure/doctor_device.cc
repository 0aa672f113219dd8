// What doctor says of cards, their drivers and their tools.
#include <algorithm>
#include <array>
#include <set>

#include "core/units.h"
#include "measure/doctor.h"
#include "measure/system_file.h"

namespace longspan::measure {

namespace fs = std::filesystem;

namespace {

// "13.0" -> 13000, "6.3.26093" -> 6003: what compares two versions.
int64_t version_number(std::string_view version) {
  const int64_t major = integer_of(version).value_or(0);
  const size_t dot = version.find('.');
  const int64_t minor = dot == std::string_view::npos ? 0 : integer_of(version.substr(dot + 1)).value_or(0);
  return major * 1000 + minor;
}

// Entries of a folder that begin with `prefix`, sorted.
std::vector<fs::path> entries_of(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().starts_with(prefix)) found.push_back(at->path());
  std::ranges::sort(found);
  return found;
}

bool has_card_file(const fs::path& root) {
  return fs::exists(below(root, "dev/kfd")) || fs::exists(below(root, "dev/nvidia0"));
}

Finding describe_device(const ops::device::DeviceInfo& device) {
  Finding finding{
      .topic = fmt::format("device {}", device.index),
      .text = fmt::format("{}, {}, {} units, {}, ECC {}, {} MHz, memory {} MHz, driver {}, runtime {}",
                          device.name, device.full_arch.empty() ? device.arch : device.full_arch,
                          device.num_units, format_bytes(device.memory_bytes), device.ecc ? "on" : "off",
                          device.clock_mhz, device.memory_clock_mhz, device.driver, device.runtime)};
  if (!device.driver.empty() && version_number(device.driver) < version_number(device.runtime)) {
    finding.verdict = Verdict::kFail;
    finding.advice = fmt::format("the driver offers {}, this program was made with {}: update the driver",
                                 device.driver, device.runtime);
  }
  return finding;
}

Findings judge_cards(const Environment& environment, const fs::path& root) {
  Findings findings;
  for (const ops::device::DeviceInfo& device : environment.devices)
    findings.push_back(describe_device(device));
  for (size_t i = 0; i < environment.products.size(); ++i)
    findings.push_back({fmt::format("products {}", environment.devices.at(i).index), Verdict::kOk,
                        "library for prompt rows: " + environment.products[i], ""});
  if (environment.device_vendor == "hip" && !environment.prompt_attention.empty())
    findings.push_back({"prompt attention", Verdict::kOk,
                        "library for vendor_prefill: " + environment.prompt_attention, ""});
  if (!findings.empty()) return findings;
  const bool built_for_card = environment.device_vendor != "emulator";
  if (built_for_card)
    return {{"devices", Verdict::kFail,
             fmt::format("none found; this program was built for {}", environment.device_vendor),
             has_card_file(root)
                 ? "the device files are there: check their permissions (groups video, render) "
                   "and the driver's log"
                 : "no /dev/kfd, no /dev/nvidia0: load the driver, or give the container the "
                   "devices; --device cpu runs without"}};
  if (has_card_file(root))
    return {{"devices", Verdict::kWarn, "this machine has a card, this program was built for the CPU alone",
             "build with -DLONGSPAN_CUDA=ON or -DLONGSPAN_HIP=ON to use it"}};
  return {{"devices", Verdict::kOk, "no card here, and none wanted: the CPU does the work", ""}};
}

// Releases of toolkits and drivers as their own files tell them.
Findings find_toolkits(const fs::path& root) {
  Findings findings;
  const auto add = [&](const char* topic, const std::string& text) {
    if (!text.empty()) findings.push_back({topic, Verdict::kOk, text, ""});
  };
  for (const fs::path& folder : entries_of(below(root, "opt"), "dtk")) {
    const std::string version = read_system_file_or_empty(folder / ".info/version");
    add("dtk", fmt::format("/opt/{}{}", folder.filename().string(), version.empty() ? "" : ": " + version));
  }
  for (const fs::path& folder : entries_of(below(root, "opt"), "rocm")) {
    const std::string version = read_system_file_or_empty(folder / ".info/version");
    if (!version.empty()) add("rocm", fmt::format("/opt/{}: {}", folder.filename().string(), version));
  }
  for (const fs::path& folder : entries_of(below(root, "usr/local"), "cuda")) {
    // {"cuda": {"name": ..., "version": "13.0.1"}, ...}
    const std::string release = read_system_file_or_empty(folder / "version.json");
    const size_t key = release.find("\"version\"");
    if (key == std::string::npos) continue;
    const size_t open = release.find('"', release.find(':', key));
    const size_t close = open == std::string::npos ? open : release.find('"', open + 1);
    if (close != std::string::npos)
      add("cuda", fmt::format("/usr/local/{}: {}", folder.filename().string(),
                              release.substr(open + 1, close - open - 1)));
  }
  const std::string nvidia = read_system_file_or_empty(below(root, "proc/driver/nvidia/version"));
  if (!nvidia.empty()) add("driver", std::string(lines_of(nvidia).front()));
  for (const char* module : {"amdgpu", "hycu", "hydcu"})
    if (const std::string version =
            read_system_file_or_empty(below(root, fmt::format("sys/module/{}/version", module)));
        !version.empty())
      add("driver", fmt::format("{} {}", module, version));
  return findings;
}

}  // namespace

Findings judge_devices(const Environment& environment, const fs::path& root, const Shell& run) {
  Findings findings = judge_cards(environment, root);
  std::ranges::move(find_toolkits(root), std::back_inserter(findings));
  constexpr std::array<std::string_view, 3> kQueries = {
      "nvidia-smi --query-gpu=name,driver_version,memory.total,ecc.mode.current,clocks.sm,clocks.max.sm,"
      "power.draw --format=csv,noheader",
      "hy-smi", "rocm-smi --showdriverversion --showproductname"};
  for (const std::string_view query : kQueries) {
    const std::optional<std::string> output = run(std::string(query));
    if (!output) continue;
    const std::string name(query.substr(0, query.find(' ')));
    constexpr size_t kMaxLines = 12;
    size_t count = 0;
    for (const std::string_view line : lines_of(*output))
      if (!trimmed(line).empty() && trimmed(line).find_first_not_of("=-+| ") != std::string_view::npos &&
          count++ < kMaxLines)
        findings.push_back({name, Verdict::kOk, std::string(trimmed(line)), ""});
  }
  return findings;
}

namespace {

// Programs that measure, and where vendors put them when they do not put them on the PATH.
constexpr std::array<std::string_view, 13> kTools = {
    "rocm-smi", "hy-smi",        "rocprof",           "rocprofv3",       "hipprof", "nvidia-smi", "nsys",
    "ncu",      "rocblas-bench", "rocblas-gemm-tune", "hipblaslt-bench", "perf",    "numactl"};
constexpr std::array<std::string_view, 6> kToolFolders = {"bin",
                                                          "hip/bin",
                                                          "lib/rocblas/benchmark_tool",
                                                          "lib/hipblaslt/benchmark_tool",
                                                          "nsight-compute",
                                                          "nsight-systems/bin"};

std::vector<fs::path> vendor_folders(const fs::path& root) {
  std::vector<fs::path> folders;
  std::vector<fs::path> homes;
  for (const auto& [parent, prefix] :
       {std::pair{"opt", "dtk"}, {"opt", "rocm"}, {"opt", "hyhal"}, {"usr/local", "cuda"}})
    std::ranges::move(entries_of(below(root, parent), prefix), std::back_inserter(homes));
  for (const fs::path& home : homes)
    for (const std::string_view folder : kToolFolders) folders.push_back(home / folder);
  return folders;
}

bool may_run(const fs::path& file) {
  std::error_code error;
  const fs::perms perms = fs::status(file, error).permissions();
  return !error && (perms & (fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec)) !=
                       fs::perms::none;
}

struct FoundTool {
  fs::path file;
  bool on_path = false;
};

std::optional<FoundTool> find_tool(std::string_view name, const std::vector<fs::path>& path,
                                   const std::vector<fs::path>& vendor) {
  std::error_code error;
  for (const bool on_path : {true, false})
    for (const fs::path& folder : on_path ? path : vendor)
      if (fs::is_regular_file(folder / name, error)) return FoundTool{folder / name, on_path};
  return std::nullopt;
}

}  // namespace

Findings judge_tools(const fs::path& root, const std::string& path_variable) {
  std::vector<fs::path> path;
  for (std::string_view rest = path_variable; !rest.empty();) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) path.push_back(below(root, rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const std::vector<fs::path> vendor = vendor_folders(root);
  Findings findings;
  std::string there, absent;
  for (const std::string_view name : kTools) {
    const auto tool = find_tool(name, path, vendor);
    if (!tool) {
      absent += fmt::format("{}{}", absent.empty() ? "" : ", ", name);
      continue;
    }
    // As the machine knows it, without the root of a test.
    const std::string file = "/" + tool->file.lexically_relative(root).string();
    if (!may_run(tool->file))
      findings.push_back({"tools", Verdict::kFail,
                          fmt::format("{} is not executable: running it says \"Permission denied\"", file),
                          fmt::format("chmod +x {}", file)});
    else if (!tool->on_path)
      findings.push_back({"tools", Verdict::kWarn, fmt::format("{} is not on the PATH", file),
                          fmt::format("export PATH=$PATH:{}", fs::path(file).parent_path().string())});
    else
      there += fmt::format("{}{}", there.empty() ? "" : ", ", file);
  }
  if (!there.empty()) findings.insert(findings.begin(), {"tools", Verdict::kOk, there, ""});
  if (!absent.empty()) findings.push_back({"tools", Verdict::kOk, "not installed: " + absent, ""});
  return findings;
}

}  // namespace longspan::measure
