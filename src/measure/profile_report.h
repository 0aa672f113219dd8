// What a profile says: where the time of its window went, by class and by kernel, against what the machine
// can do; and how two profiles differ. Made from the events, never from a guess: the classes add up to the
// window.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace longspan::measure {

// Reads the folder's events and writes report.json, report.txt, kernels.csv, trace.json and, of a device with
// kernel times, launches.csv beside them. `finished`: false where the server never stopped the profile; the
// report says so. `timed`: what an operation's time is: of its "operations" on the host, of its "kernels" on
// a device, or only of its "launches". Returns report.json:
//   {kind: "profile", name, model, device, dtype, timed, started_unix_seconds, finished,
//    window: {seconds, idle_seconds, steps, prefill_steps, decode_steps, mixed_steps, prompt_tokens,
//             decode_tokens, requests, requests_before, cold_steps: [{at_seconds, seconds, prompt_tokens,
//             decode_tokens}]},
//    classes: [{name, calls, ms, wall_percent, busy_percent, gbytes_per_s, read_percent, tflops,
//              matrix_percent}],   null where not known
//    phases: [{name, ms, wall_percent, device_idle_ms}],   the last with kernel times: no kernel ran then
//    accounted_percent, events, trace_events, lost_events, peak, notes}
nlohmann::ordered_json write_profile_report(const std::filesystem::path& folder);

// report.json of a folder, made anew where its events are there. Throws kNotFound, kInvalid.
nlohmann::ordered_json load_profile_report(const std::filesystem::path& folder);

std::string profile_table(const nlohmann::ordered_json& report);
// Shares of the busy time, `before` to `after`, the largest change first; and what else differs, so that
// nobody takes two workloads for two programs.
std::string profile_comparison(const nlohmann::ordered_json& before, const nlohmann::ordered_json& after);

}  // namespace longspan::measure
