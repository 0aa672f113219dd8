#include "measure/peak_cache.h"

#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/cache_folder.h"
#include "measure/environment.h"
#include "measure/peaks.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Of all threads of this process.
double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// One file a key; the key is in the file as well, and compared.
fs::path peak_file(const PeakKey& of, const std::string& version) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : fmt::format("{}|{}|{}", of.machine, of.threads, version)) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3u;
  }
  return cache_folder() / fmt::format("peak-{:016x}.json", hash);
}

}  // namespace

PeakKey this_machine(int threads) { return {read_machine("/").cpu_model, threads}; }

Peaks measure_peaks(int threads, double seconds, size_t memory_bytes) {
  Peaks peaks{.of = this_machine(threads), .version = program_version()};
  ThreadPool pool(threads);
  const Buffer memory(memory_bytes);
  std::memset(memory.data(), 1, memory.size_bytes());
  const double began = now_seconds(), processor_began = processor_seconds();
  peaks.read_gbytes = best_of(seconds, [&] { return read_gbytes(pool, memory); });
  peaks.copy_gbytes = best_of(seconds, [&] { return copy_gbytes(pool, memory); });
  peaks.bf16_gflops = best_of(seconds, [&] { return amx_gflops(pool); });
  peaks.fp32_gflops = best_of(seconds, [&] { return float_gflops(pool); });
  peaks.processor_share = (processor_seconds() - processor_began) / ((now_seconds() - began) * threads);
  peaks.unix_seconds = now_unix_seconds();
  return peaks;
}

std::optional<Peaks> cached_peaks(const PeakKey& of) {
  std::ifstream file(peak_file(of, program_version()));
  if (!file) return std::nullopt;
  const std::optional<Peaks> peaks = peaks_from_json(Json::parse(file, nullptr, /*allow_exceptions=*/false));
  return peaks && peaks->of == of && peaks->version == program_version() ? peaks : std::nullopt;
}

fs::path store_peaks(const Peaks& peaks) {
  const fs::path path = peak_file(peaks.of, peaks.version);
  write_whole_file(path, to_json(peaks).dump(2) + "\n");
  return path;
}

Json to_json(const Peaks& peaks) {
  const auto tflops = [](double gflops) { return gflops > 0 ? Json(gflops / 1e3) : Json(nullptr); };
  return {{"kind", "peak"},
          {"machine", peaks.of.machine},
          {"threads", peaks.of.threads},
          {"version", peaks.version},
          {"read_gbytes_per_s", peaks.read_gbytes},
          {"copy_gbytes_per_s", peaks.copy_gbytes},
          {"bf16_tflops", tflops(peaks.bf16_gflops)},
          {"fp16_tflops", tflops(peaks.fp16_gflops)},
          {"fp32_tflops", tflops(peaks.fp32_gflops)},
          {"unix_seconds", peaks.unix_seconds},
          {"processor_share", peaks.processor_share}};
}

std::optional<Peaks> peaks_from_json(const Json& json) {
  const auto gflops = [&](const char* key) {
    return json.contains(key) && json[key].is_number() ? json[key].get<double>() * 1e3 : 0.0;
  };
  try {
    const Peaks peaks{.of = {.machine = json.at("machine"), .threads = json.at("threads")},
                      .version = json.at("version"),
                      .read_gbytes = json.at("read_gbytes_per_s"),
                      .copy_gbytes = json.at("copy_gbytes_per_s"),
                      .bf16_gflops = gflops("bf16_tflops"),
                      .fp16_gflops = gflops("fp16_tflops"),
                      .fp32_gflops = gflops("fp32_tflops"),
                      .unix_seconds = json.at("unix_seconds"),
                      .processor_share = json.value("processor_share", 1.0)};
    if (!(peaks.read_gbytes > 0 && peaks.fp32_gflops > 0)) return std::nullopt;
    return peaks;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace longspan::measure
