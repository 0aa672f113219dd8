// What doctor says of the machine: processor, memory, control group, limits.
#include <algorithm>

#include "core/units.h"
#include "measure/doctor.h"
#include "measure/system_file.h"

namespace longspan::measure {

namespace fs = std::filesystem;

namespace {

Finding judge_cpu(const Machine& machine) {
  Finding finding{.topic = "cpu",
                  .text = fmt::format("{}, {} of {} processors usable", machine.cpu_model,
                                      machine.num_usable_cpus, machine.num_cpus)};
  const auto says = [&](Verdict verdict, std::string_view what, std::string_view advice) {
    finding.verdict = verdict;
    finding.text += fmt::format("; {}", what);
    finding.advice = advice;
    return finding;
  };
  if (machine.has("amx_bf16")) return says(Verdict::kOk, "amx_bf16: bf16 products run in tiles", "");
  if (machine.has("avx512_bf16"))
    return says(Verdict::kOk, "avx512_bf16: bf16 products run in the vector unit", "");
  if (machine.has("asimd")) return says(Verdict::kOk, "asimd: products run in fp32 vectors", "");
  if (machine.has("avx512f") || machine.has("avx2"))
    return says(Verdict::kWarn,
                machine.has("avx512f") ? "avx512f without avx512_bf16: bf16 products run in fp32 vectors"
                                       : "avx2 only: bf16 products run in fp32 vectors of 8",
                "prefill is several times slower than with amx_bf16 or avx512_bf16 (Sapphire Rapids, Zen 4 "
                "and later); `longspan bench peak` says how fast");
  return says(Verdict::kWarn, "no avx2: products run in vectors of 4",
              "use another machine, or check that the hypervisor passes the processor's features on");
}

Findings judge_memory(const Machine& machine) {
  Findings findings;
  const bool scarce = machine.memory_bytes > 0 && machine.available_bytes < machine.memory_bytes / 10;
  findings.push_back(
      {"memory", scarce ? Verdict::kWarn : Verdict::kOk,
       fmt::format("{}, {} available", format_bytes(machine.memory_bytes),
                   format_bytes(machine.available_bytes)),
       scarce ? "less than a tenth is free: end what else runs, or give the server --memory" : ""});
  constexpr size_t kMuchSwap = size_t{256} << 20;
  if (machine.swap_used_bytes > kMuchSwap)
    findings.push_back(
        {"swap", Verdict::kWarn,
         fmt::format("{} of {} in use", format_bytes(machine.swap_used_bytes),
                     format_bytes(machine.swap_bytes)),
         "weights or cache may lie on disk: times then mean nothing. Free memory, `swapoff -a`"});
  else
    findings.push_back({"swap", Verdict::kOk,
                        machine.swap_bytes == 0 ? "none" : format_bytes(machine.swap_bytes) + ", not in use",
                        ""});
  return findings;
}

Finding judge_numa(const Machine& machine) {
  if (machine.nodes.size() <= 1) return {"numa", Verdict::kOk, "one node", ""};
  std::string nodes;
  for (const NumaNode& node : machine.nodes)
    nodes += fmt::format("{}node {}: cpus {}, {}", nodes.empty() ? "" : "; ", node.index, node.cpus,
                         format_bytes(node.memory_bytes));
  return {"numa", Verdict::kWarn, fmt::format("{} nodes ({})", machine.nodes.size(), nodes),
          "weights land on the node of the thread that loads them: start with numactl --interleave=all, or "
          "bind to one node (numactl -N 0 -m 0)"};
}

Findings judge_group(const Machine& machine, const ControlGroup& group) {
  Findings findings;
  if (group.version == 0) {
    findings.push_back({"cgroup", Verdict::kOk, "none found", ""});
  } else {
    Finding finding{.topic = "cgroup", .text = fmt::format("{} (version {})", group.path, group.version)};
    const size_t used = group.memory_bytes.value_or(0);
    if (group.memory_limit_bytes) {
      finding.text +=
          fmt::format(", {} of {} memory used", format_bytes(used), format_bytes(*group.memory_limit_bytes));
      if (used > *group.memory_limit_bytes / 10 * 9) {
        finding.verdict = Verdict::kWarn;
        finding.advice =
            "nine tenths of the limit are used (file cache counts): raise it, or give the server "
            "a smaller --memory";
      }
    } else {
      finding.text += ", no memory limit";
    }
    if (group.cpu_limit && *group.cpu_limit < machine.num_usable_cpus) {
      finding.verdict = Verdict::kWarn;
      finding.text += fmt::format(", {:.2f} processors of time for {} that may be used", *group.cpu_limit,
                                  machine.num_usable_cpus);
      finding.advice = fmt::format(
          "more threads than the quota are stopped for parts of each period: "
          "--threads {}, or raise the quota",
          std::max(1, static_cast<int>(*group.cpu_limit)));
    }
    findings.push_back(std::move(finding));
  }
  // The kernel's log shows the kills of every group of the machine; only this group's own counter says
  // whether any was ours.
  const int64_t others = std::max<int64_t>(0, machine.oom_kills_since_boot - group.oom_kills);
  if (group.oom_kills > 0)
    findings.push_back(
        {"oom", Verdict::kFail,
         fmt::format("{} killed in this cgroup for want of memory (limit hit {} times); {} "
                     "elsewhere since boot",
                     group.oom_kills, group.oom_events, others),
         "raise the cgroup's limit or give the server a smaller --memory; a restarted container "
         "counts from zero"});
  else if (others > 0)
    findings.push_back(
        {"oom", Verdict::kOk,
         fmt::format("none in this cgroup; {} elsewhere on this machine since boot: what dmesg "
                     "shows is not yours",
                     others),
         ""});
  else
    findings.push_back({"oom", Verdict::kOk, "none in this cgroup, none since boot", ""});
  return findings;
}

}  // namespace

Findings judge_machine(const Environment& environment) {
  const Machine& machine = environment.machine;
  Findings findings{
      {"system", Verdict::kOk,
       fmt::format("{}, kernel {}", machine.system.empty() ? "Linux" : machine.system, machine.kernel), ""},
      judge_cpu(machine)};
  std::ranges::move(judge_memory(machine), std::back_inserter(findings));
  findings.push_back(judge_numa(machine));
  std::ranges::move(judge_group(machine, environment.group), std::back_inserter(findings));
  return findings;
}

namespace {

constexpr int64_t kMinOpenFiles = 256;      // a few clients, the model's files, libraries
constexpr int64_t kEnoughOpenFiles = 1280;  // 1,024 connections (HttpLimits) and the rest

Finding judge_open_files(const fs::path& root) {
  const std::string limits = read_system_file_or_empty(below(root, "proc/self/limits"));
  const auto words = words_of(value_after(limits, "Max open files").value_or(""));
  if (words.size() < 2) return {"open files", Verdict::kOk, "limit not known", ""};
  const int64_t soft = words[0] == "unlimited" ? INT64_MAX : integer_of(words[0]).value_or(0);
  const std::string text = fmt::format("{} (hard limit {})", words[0], words[1]);
  if (soft >= kEnoughOpenFiles) return {"open files", Verdict::kOk, text, ""};
  return {
      "open files", soft < kMinOpenFiles ? Verdict::kFail : Verdict::kWarn,
      fmt::format("got {}, need {} for the 1,024 connections that a server takes", text, kEnoughOpenFiles),
      "ulimit -n 65536 in the shell that starts it; LimitNOFILE=65536 in a systemd unit"};
}

Finding judge_disk(const fs::path& folder) {
  constexpr uintmax_t kLittle = uintmax_t{1} << 30;
  constexpr uintmax_t kNothing = uintmax_t{64} << 20;
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error)
    return {"disk", Verdict::kWarn, fmt::format("{}: {}", folder.string(), error.message()),
            "check the path"};
  const std::string text = fmt::format("{}: {} free of {}", folder.string(), format_bytes(space.available),
                                       format_bytes(space.capacity));
  if (space.available >= kLittle) return {"disk", Verdict::kOk, text, ""};
  return {"disk", space.available < kNothing ? Verdict::kFail : Verdict::kWarn, text,
          "traces, results and logs need room: free some"};
}

}  // namespace

Findings judge_limits(const fs::path& root, const std::vector<fs::path>& folders) {
  Findings findings{judge_open_files(root)};
  for (const fs::path& folder : folders) findings.push_back(judge_disk(folder));
  return findings;
}

}  // namespace longspan::measure
