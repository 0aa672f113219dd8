#include "measure/peak_cache.h"

#include <sched.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "measure/environment.h"
#include "measure/peaks.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

double best_of(double seconds, const std::function<double()>& once) {
  double best = 0;
  for (const double end = now_seconds() + seconds; now_seconds() < end;) best = std::max(best, once());
  return best;
}

std::string this_cpu_model() { return read_machine("/").cpu_model; }

fs::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return fs::path(cache) / "longspan";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != 0 ? fs::path(home) / ".cache/longspan" : fs::path();
}

// Of all threads of this process.
double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// One file a key; the key is in the file as well, and compared.
fs::path peak_file(const std::string& cpu_model, int threads, const std::string& version) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : fmt::format("{}|{}|{}", cpu_model, threads, version)) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3u;
  }
  return cache_folder() / fmt::format("peak-{:016x}.json", hash);
}

}  // namespace

int usable_threads() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return 1;
}

Peaks measure_peaks(int threads, double seconds, size_t memory_bytes) {
  Peaks peaks{.cpu_model = this_cpu_model(), .threads = threads, .version = program_version()};
  ops::cpu::ThreadPool pool(threads);
  const Buffer memory(memory_bytes);
  std::memset(memory.data(), 1, memory.size_bytes());
  const double began = now_seconds(), processor_began = processor_seconds();
  peaks.read_gbytes = best_of(seconds, [&] { return read_gbytes(pool, memory); });
  peaks.copy_gbytes = best_of(seconds, [&] { return copy_gbytes(pool, memory); });
  peaks.processor_share = (processor_seconds() - processor_began) / ((now_seconds() - began) * threads);
  peaks.amx_gflops = threads * amx_peak_gflops(seconds);
  peaks.float_gflops = threads * float_peak_gflops(seconds);
  peaks.unix_seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  return peaks;
}

std::optional<Peaks> cached_peaks(int threads) {
  const std::string cpu_model = this_cpu_model();
  std::ifstream file(peak_file(cpu_model, threads, program_version()));
  if (!file) return std::nullopt;
  const std::optional<Peaks> peaks = peaks_from_json(Json::parse(file, nullptr, /*allow_exceptions=*/false));
  const bool ours = peaks && peaks->cpu_model == cpu_model && peaks->threads == threads &&
                    peaks->version == program_version();
  return ours ? peaks : std::nullopt;
}

fs::path store_peaks(const Peaks& peaks) {
  const fs::path path = peak_file(peaks.cpu_model, peaks.threads, peaks.version);
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path draft = path.string() + ".draft";
  std::ofstream(draft) << to_json(peaks).dump(2) << "\n";
  fs::rename(draft, path, error);  // readers see a whole file or none
  if (error)
    fail(ErrorKind::kEnvironment, "{}: {}; set XDG_CACHE_HOME to a folder that can be written", path.string(),
         error.message());
  return path;
}

Json to_json(const Peaks& peaks) {
  return {{"kind", "peak"},
          {"cpu_model", peaks.cpu_model},
          {"threads", peaks.threads},
          {"version", peaks.version},
          {"read_gbytes_per_s", peaks.read_gbytes},
          {"copy_gbytes_per_s", peaks.copy_gbytes},
          {"bf16_tflops", peaks.amx_gflops > 0 ? Json(peaks.amx_gflops / 1e3) : Json(nullptr)},
          {"fp32_tflops", peaks.float_gflops / 1e3},
          {"unix_seconds", peaks.unix_seconds},
          {"processor_share", peaks.processor_share}};
}

std::optional<Peaks> peaks_from_json(const Json& json) {
  try {
    Peaks peaks{.cpu_model = json.at("cpu_model"),
                .threads = json.at("threads"),
                .version = json.at("version"),
                .read_gbytes = json.at("read_gbytes_per_s"),
                .copy_gbytes = json.at("copy_gbytes_per_s"),
                .float_gflops = json.at("fp32_tflops").get<double>() * 1e3,
                .unix_seconds = json.at("unix_seconds"),
                .processor_share = json.value("processor_share", 1.0)};
    if (!json.at("bf16_tflops").is_null()) peaks.amx_gflops = json["bf16_tflops"].get<double>() * 1e3;
    if (!(peaks.read_gbytes > 0 && peaks.float_gflops > 0)) return std::nullopt;
    return peaks;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace longspan::measure
