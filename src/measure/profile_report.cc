#include "measure/profile_report.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "core/error.h"
#include "core/units.h"
#include "measure/kernel_name.h"
#include "measure/peak_cache.h"
#include "measure/profile_file.h"
#include "measure/profile_totals.h"
#include "measure/profile_trace.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;
using engine::Phase;
using Json = nlohmann::ordered_json;

double ms_of(int64_t ns) { return static_cast<double>(ns) * 1e-6; }
double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }
Json known(double value) { return value > 0 ? Json(value) : Json(nullptr); }

// The limits that percentages are of, and the dtype of the products.
struct Limits {
  std::optional<Peaks> peaks;
  double matrix_gflops = 0;
};

bool on_host(const Json& session) { return session.value("host_memory", true); }

// The server's own figures, else those that were measured on its machine or device since.
Limits limits_of(const Json& session) {
  Limits limits;
  if (session.contains("peak")) limits.peaks = peaks_from_json(session["peak"]);
  if (!limits.peaks)
    limits.peaks =
        on_host(session)
            ? cached_peaks({.machine = session.value("cpu", ""), .threads = session.value("threads", 0)})
            : cached_peaks({.machine = session.value("device", "")});
  if (limits.peaks)
    limits.matrix_gflops = limits.peaks->matrix_gflops(dtype_from_name(session.value("dtype", "float32")));
  return limits;
}

Json class_row(std::string_view name, const WorkTotal& work, const ProfileTotals& totals,
               const Limits& limits) {
  const double busy = ms_of(totals.wall_ns() - totals.idle_ns());
  const double read = limits.peaks ? percent(work.gbytes_per_s(), limits.peaks->read_gbytes) : 0;
  const double matrix = percent(work.tflops() * 1e3, limits.matrix_gflops);
  return {{"name", name},
          {"calls", work.calls},
          {"ms", ms_of(work.ns)},
          {"wall_percent", percent(ms_of(work.ns), ms_of(totals.wall_ns()))},
          {"busy_percent", name == "idle" ? Json(nullptr) : Json(percent(ms_of(work.ns), busy))},
          {"gbytes_per_s", known(work.gbytes_per_s())},
          {"read_percent", known(read)},
          {"tflops", known(work.tflops())},
          {"matrix_percent", known(matrix)}};
}

// Every nanosecond of the window in one row: operations by class, and what is left: of a device when it does
// nothing else, of the host its phases.
Json classes_json(const ProfileTotals& totals, const Limits& limits) {
  Json rows = Json::array();
  const auto add = [&](std::string_view name, const WorkTotal& work) {
    if (work.calls > 0 || work.ns > 0) rows.push_back(class_row(name, work, totals, limits));
  };
  for (size_t i = 0; i < ops::kNumOpClasses; ++i)
    add(ops::to_string(static_cast<ops::OpClass>(i)), totals.classes()[i]);
  if (totals.timing() == OpTiming::kKernels) {
    add("copies", totals.copies());
    add("other kernels", totals.other_kernels());
    add("idle", {.ns = totals.idle_ns()});
    return rows;
  }
  const auto add_phase = [&](std::string_view name, Phase phase) {
    add(name, {.calls = totals.phase_calls(phase), .ns = totals.own_ns(phase)});
  };
  add_phase("between operations", Phase::kForward);
  add_phase("sampling", Phase::kSampling);
  add_phase("input preparation", Phase::kInputs);
  add_phase("scheduling", Phase::kScheduling);
  add_phase("cache copies", Phase::kCopies);
  add_phase("publishing", Phase::kPublishing);
  add_phase("idle", Phase::kIdle);
  return rows;
}

Json phases_json(const ProfileTotals& totals) {
  Json rows = Json::array();
  for (size_t i = 0; i < engine::kNumPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    rows.push_back({{"name", engine::to_string(phase)},
                    {"ms", ms_of(totals.phase_ns(phase))},
                    {"wall_percent", percent(ms_of(totals.phase_ns(phase)), ms_of(totals.wall_ns()))}});
    if (totals.timing() == OpTiming::kKernels)
      rows.back()["device_idle_ms"] = ms_of(totals.device_idle_ns(phase));
  }
  return rows;
}

Json window_json(const ProfileTotals& totals) {
  Json cold = Json::array();
  for (const engine::TraceEvent& step : totals.cold_steps())
    cold.push_back({{"at_seconds", ms_of(step.begin_ns - totals.begin_ns()) * 1e-3},
                    {"seconds", ms_of(step.end_ns - step.begin_ns) * 1e-3},
                    {"prompt_tokens", step.op.rows},
                    {"decode_tokens", step.op.n}});
  return {{"seconds", ms_of(totals.wall_ns()) * 1e-3},
          {"idle_seconds", ms_of(totals.idle_ns()) * 1e-3},
          {"steps", totals.num_steps},
          {"prefill_steps", totals.num_prefill_steps},
          {"decode_steps", totals.num_decode_steps},
          {"mixed_steps", totals.num_steps - totals.num_prefill_steps - totals.num_decode_steps},
          {"prompt_tokens", totals.prompt_tokens},
          {"decode_tokens", totals.decode_tokens},
          {"requests", totals.num_requests},
          {"requests_before", totals.num_requests_before},
          {"cold_steps", std::move(cold)}};
}

Json notes_json(const ProfileTotals& totals, const Json& session, const Limits& limits, const Json& ending) {
  Json notes = Json::array();
  if (totals.num_steps == 0) notes.push_back("no step ran in the window: there is nothing to see");
  if (!totals.cold_steps().empty())
    notes.push_back(fmt::format(
        "cold: {} of the steps the first of their size since the server started; memory was touched and "
        "workspaces grew in them. Warm up with requests of the same lengths, then profile again",
        totals.cold_steps().size()));
  if (totals.num_requests_before > 0)
    notes.push_back(
        fmt::format("{} requests were under way when the window began", totals.num_requests_before));
  if (!ending.value("finished", false))
    notes.push_back(
        "the profile was never stopped: the server ended, and what it had not written is missing");
  if (ending.value("full", false))
    notes.push_back("the window ended by itself when the trace was full; take a shorter one");
  if (ending.value("lost_events", int64_t{0}) > 0)
    notes.push_back("events were lost: the table does not add up");
  if (ending.value("disk_failed", false)) notes.push_back("the disk refused part of the events");
  if (ending.value("lost_device_events", int64_t{0}) > 0)
    notes.push_back("records of the device were lost: what they were about counts as idle");
  if (!on_host(session) && totals.timing() == OpTiming::kCalls)
    notes.push_back(fmt::format(
        "no kernel times: {}. Operations are timed where they are launched: what the device computes "
        "meanwhile "
        "shows up as sampling, which waits for it. Decode steps were not replayed as a whole while this was "
        "taken",
        session.value("no_kernel_times", "this server takes none")));
  if (!limits.peaks)
    notes.push_back(
        "no share of the machine's limits: run `longspan bench peak` on it (with --device for a card), then "
        "this report again");
  return notes;
}

std::string kernels_csv(const ProfileTotals& totals) {
  std::string csv = "name,class,calls,total_ms,mean_us,wall_percent,gbytes_per_s,tflops,launches\n";
  for (const KernelTotal& kernel : totals.kernels()) {
    const double ms = ms_of(kernel.work.ns);
    csv +=
        fmt::format("{},{},{},{:.6f},{:.3f},{:.3f},{:.2f},{:.4f},{}\n", kernel.name,
                    ops::to_string(kernel.op_class), kernel.work.calls, ms,
                    ms * 1e3 / static_cast<double>(kernel.work.calls), percent(ms, ms_of(totals.wall_ns())),
                    kernel.work.gbytes_per_s(), kernel.work.tflops(), kernel.work.launches);
  }
  return csv;
}

// By the kernels' own names, which hold commas.
std::string launches_csv(const ProfileTotals& totals) {
  std::string csv = "kernel,launches,total_ms,mean_us,wall_percent\n";
  for (const LaunchTotal& kernel : totals.launches()) {
    const double ms = ms_of(kernel.ns);
    csv += fmt::format("\"{}\",{},{:.6f},{:.3f},{:.3f}\n", kernel.name, kernel.launches, ms,
                       ms * 1e3 / static_cast<double>(kernel.launches), percent(ms, ms_of(totals.wall_ns())));
  }
  return csv;
}

// What the device did, where its events are there, after the engine's.
void add_device(const fs::path& folder, ProfileTotals& totals, TraceFile& trace, Json& notes) {
  DeviceEvents device = read_device_events(folder);
  for (std::string& name : device.names) name = kernel_name(name);
  const KernelSpans spans = totals.add_kernels(std::move(device.events), device.names);
  for (const KernelSpan& span : spans.spans)
    trace.add_span(span, span.is_copy || span.name >= device.names.size() ? "copy" : device.names[span.name],
                   totals.kernel_of(span));
  if (spans.num_unmatched_replays > 0)
    notes.push_back(
        fmt::format("of {} replayed steps the device did not run what was recorded: theirs are other kernels",
                    spans.num_unmatched_replays));
  write_text(folder / kLaunchesFile, launches_csv(totals));
}

}  // namespace

Json write_profile_report(const fs::path& folder) {
  const Json session = read_session(folder);
  const Json ending = session.value("ending", Json::object());
  const Limits limits = limits_of(session);
  const bool kernels = fs::exists(folder / kDeviceFile);
  ProfileTotals totals(kernels ? OpTiming::kKernels : OpTiming::kCalls);
  TraceFile trace(folder / kTraceFile);
  read_events(folder, [&](const engine::TraceEvent& event) {
    totals.add(event);
    trace.add(event);
  });
  Json device_notes = Json::array();
  if (kernels) add_device(folder, totals, trace, device_notes);
  trace.finish();
  Json report = {{"kind", "profile"},
                 {"name", session.value("name", "")},
                 {"model", session.value("model", "")},
                 {"device", session.value("device", "")},
                 {"dtype", session.value("dtype", "")},
                 {"timed", kernels            ? "kernels"
                           : on_host(session) ? "operations"
                                              : "launches"},
                 {"started_unix_seconds", session.value("started_unix_seconds", int64_t{0})},
                 {"finished", ending.value("finished", false)},
                 {"window", window_json(totals)},
                 {"classes", classes_json(totals, limits)},
                 {"phases", phases_json(totals)}};
  double accounted = 0;
  for (const Json& row : report["classes"]) accounted += row["ms"].get<double>();
  report["accounted_percent"] = percent(accounted, ms_of(totals.wall_ns()));
  report["events"] = totals.num_events;
  report["trace_events"] = trace.num_written();
  report["lost_events"] = ending.value("lost_events", int64_t{0});
  report["peak"] = limits.peaks ? to_json(*limits.peaks) : Json(nullptr);
  report["environment"] = session.value("environment", Json(nullptr));
  report["notes"] = notes_json(totals, session, limits, ending);
  for (const Json& note : device_notes) report["notes"].push_back(note);
  write_text(folder / "kernels.csv", kernels_csv(totals));
  write_text(folder / "report.txt", profile_table(report));
  write_text(folder / "report.json", report.dump(2) + "\n");
  return report;
}

Json load_profile_report(const fs::path& folder) {
  if (fs::exists(folder / kEventsFile)) return write_profile_report(folder);
  const fs::path path = folder / "report.json";
  std::ifstream file(path);
  if (!file) fail(ErrorKind::kNotFound, "{}: no profile: need a folder with session.json", folder.string());
  Json report = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object() || report.value("kind", "") != "profile" || !report.contains("classes"))
    fail(ErrorKind::kInvalid, "{}: need the report of a profile", path.string());
  return report;
}

}  // namespace longspan::measure
