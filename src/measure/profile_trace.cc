#include "measure/profile_trace.h"

#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace longspan::measure {
namespace {

using engine::TraceEvent;

// The rows of the picture, top to bottom.
enum Track : int { kStepTrack = 1, kPhaseTrack = 2, kOpTrack = 3, kDeviceTrack = 4 };

constexpr const char* kPreamble =
    R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","pid":1,"name":"process_name","args":{"name":"longspan engine"}},
{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"steps"}},
{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"phases"}},
{"ph":"M","pid":1,"tid":3,"name":"thread_name","args":{"name":"operations"}},
{"ph":"M","pid":1,"tid":4,"name":"thread_name","args":{"name":"device"}})";

// Microseconds with their nanoseconds: sums of the file are those of the events.
struct Micros {
  int64_t ns;
};

}  // namespace
}  // namespace longspan::measure

template <>
struct fmt::formatter<longspan::measure::Micros> : fmt::formatter<int64_t> {
  template <class Context>
  auto format(const longspan::measure::Micros& time, Context& context) const {
    return fmt::format_to(context.out(), "{}.{:03}", time.ns / 1000, time.ns % 1000);
  }
};

namespace longspan::measure {

TraceFile::TraceFile(const std::filesystem::path& path) : path_(path), out_(path, std::ios::trunc) {
  if (!out_) fail(ErrorKind::kEnvironment, "{}: cannot be written", path.string());
  out_ << kPreamble;
}

void TraceFile::add(const TraceEvent& event) {
  if (num_written_ == kMaxTraceLines) return;
  if (event.num_launches > 0) return;  // in a replay, of which there is one line
  if (first_ns_ < 0) first_ns_ = event.begin_ns;
  const int64_t at = std::max<int64_t>(0, event.begin_ns - first_ns_);
  const int64_t took = event.end_ns - event.begin_ns;
  line_.clear();
  const auto to = std::back_inserter(line_);
  switch (event.kind) {
    case TraceEvent::Kind::kOp:
      fmt::format_to(to,
                     R"(,{{"ph":"X","pid":1,"tid":{},"name":"{}","cat":"{}","ts":{},"dur":{},"args":{{)"
                     R"("layer":{},"rows":{},"n":{},"k":{},"bytes":{:.0f},"flops":{:.0f}}}}})",
                     static_cast<int>(kOpTrack), ops::name_of(event.op), ops::to_string(event.op.op_class),
                     Micros{at}, Micros{took}, event.op.layer, event.op.rows, event.op.n, event.op.k,
                     event.op.bytes, event.op.flops);
      break;
    case TraceEvent::Kind::kReplay:
      fmt::format_to(to,
                     R"(,{{"ph":"X","pid":1,"tid":{},"name":"replay","cat":"replay","ts":{},"dur":{},)"
                     R"("args":{{"operations":{}}}}})",
                     static_cast<int>(kOpTrack), Micros{at}, Micros{took}, event.op.rows);
      break;
    case TraceEvent::Kind::kPhase:
      fmt::format_to(to, R"(,{{"ph":"X","pid":1,"tid":{},"name":"{}","cat":"phase","ts":{},"dur":{}}})",
                     static_cast<int>(kPhaseTrack), engine::to_string(event.phase), Micros{at}, Micros{took});
      break;
    case TraceEvent::Kind::kStep:
      fmt::format_to(to,
                     R"(,{{"ph":"X","pid":1,"tid":{},"name":"step","cat":"step","ts":{},"dur":{},"args":{{)"
                     R"("prompt_tokens":{},"decode_tokens":{},"sequences":{},"cold":{}}}}})",
                     static_cast<int>(kStepTrack), Micros{at}, Micros{took}, event.op.rows, event.op.n,
                     event.op.k, event.cold);
      break;
    case TraceEvent::Kind::kAdmitted:
      fmt::format_to(to,
                     R"(,{{"ph":"i","s":"p","pid":1,"tid":{},"name":"request","ts":{},"args":{{)"
                     R"("prompt_tokens":{}}}}})",
                     static_cast<int>(kStepTrack), Micros{at}, event.op.rows);
      break;
  }
  out_ << "\n" << line_;
  ++num_written_;
}

void TraceFile::add_span(const KernelSpan& span, const std::string& name, const KernelTotal* operation) {
  if (num_written_ == kMaxTraceLines || span.end_ns == span.begin_ns) return;
  line_.clear();
  fmt::format_to(std::back_inserter(line_),
                 R"(,{{"ph":"X","pid":1,"tid":{},"name":{},"cat":"{}","ts":{},"dur":{},"args":{{)"
                 R"("operation":"{}"}}}})",
                 static_cast<int>(kDeviceTrack), nlohmann::json(name).dump(),
                 operation == nullptr ? "device" : ops::to_string(operation->op_class),
                 Micros{std::max<int64_t>(0, span.begin_ns - first_ns_)}, Micros{span.end_ns - span.begin_ns},
                 operation == nullptr ? "" : operation->name);
  out_ << "\n" << line_;
  ++num_written_;
}

void TraceFile::finish() {
  out_ << "\n]}\n";
  out_.close();
  if (!out_) fail(ErrorKind::kEnvironment, "{}: the disk refused it", path_.string());
}

}  // namespace longspan::measure
