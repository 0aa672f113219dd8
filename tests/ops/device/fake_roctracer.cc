// A libroctracer64 for tests, as far as roctracer.h knows one: its records are those that a test asks for.
// FAKE_ROCTRACER says what is wrong with it.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ops/device/roctracer.h"

namespace {

namespace roctracer = longspan::ops::device::roctracer;
using roctracer::Domain;
using roctracer::Record;
using roctracer::Status;
constexpr Status kError{-1};

const std::map<std::string, uint32_t> kOps = {{"hipLaunchKernel", 40},
                                              {"hipMemcpyAsync", 41}};  // an old runtime's

struct Tracer {
  roctracer::PoolProperties properties{};
  bool open = false;
  std::set<std::pair<Domain, uint32_t>> enabled;
  std::vector<Record> buffer;
  std::vector<uint64_t> ids;
  uint64_t last_correlation = 0;
} tracer;

bool has_fault(std::string_view name) {
  const char* const fault = std::getenv("FAKE_ROCTRACER");
  return fault != nullptr && fault == name;
}

void write(const Record& record) {
  tracer.buffer.push_back(record);
  if (tracer.buffer.size() * sizeof(Record) >= tracer.properties.buffer_bytes)
    std::exit(3);  // the test asks for less
}

bool records(Domain domain, uint32_t op) { return tracer.enabled.contains({domain, op}); }

}  // namespace

extern "C" {

uint32_t roctracer_version_major() { return has_fault("version") ? 5 : 4; }
const char* roctracer_error_string() { return "as asked"; }
Status roctracer_set_properties(Domain domain, void*) {
  return domain == Domain::kHipApi ? Status::kSuccess : kError;
}
Status roctracer_op_code(Domain domain, const char* name, uint32_t* op, uint32_t*) {
  const auto at = kOps.find(name);
  if (domain != Domain::kHipApi || at == kOps.end() || has_fault("no-launches")) return kError;
  *op = at->second;
  return Status::kSuccess;
}
Status roctracer_open_pool_expl(const roctracer::PoolProperties* properties, void** pool) {
  if (tracer.open) return kError;
  tracer = {.properties = *properties, .open = true, .enabled = {}, .buffer = {}, .ids = tracer.ids};
  *pool = &tracer;
  return Status::kSuccess;
}
Status roctracer_flush_activity_expl(void*) {
  const std::vector<Record> full = std::exchange(tracer.buffer, {});
  std::thread([&] {  // as the library does
    const char* const begin = reinterpret_cast<const char*>(full.data());
    if (!full.empty())
      tracer.properties.take_buffer(begin, begin + full.size() * sizeof(Record),
                                    tracer.properties.take_argument);
  })
      .join();
  return Status::kSuccess;
}
Status roctracer_close_pool_expl(void* pool) {
  tracer.open = false;
  return roctracer_flush_activity_expl(pool);
}
Status roctracer_enable_op_activity_expl(Domain domain, uint32_t op, void*) {
  if (!tracer.open || (domain == Domain::kHipOps && op == 1 && has_fault("no-copies"))) return kError;
  tracer.enabled.insert({domain, op});
  return Status::kSuccess;
}
Status roctracer_disable_op_activity(Domain domain, uint32_t op) {
  return tracer.enabled.erase({domain, op}) == 1 ? Status::kSuccess : kError;
}
Status roctracer_next_record(const Record* record, const Record** next) {
  *next = record + 1;
  return Status::kSuccess;
}
Status roctracer_get_timestamp(uint64_t* ns) {  // a clock of its own
  *ns = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) + 5'000'000'000;
  return Status::kSuccess;
}
Status roctracer_activity_push_external_correlation_id(uint64_t id) {
  tracer.ids.push_back(id);
  return Status::kSuccess;
}
#ifndef FAKE_WITHOUT_POP
Status roctracer_activity_pop_external_correlation_id(uint64_t* last) {
  if (tracer.ids.empty()) return kError;
  if (last != nullptr) *last = tracer.ids.back();
  tracer.ids.pop_back();
  return Status::kSuccess;
}
#endif

// The program calls a function of the runtime, which puts kernels (or, unnamed, a copy) to a queue: what a
// roctracer that records it writes. Times of its own clock.
void fake_launch(const char* function, const char* const* kernels, int num_kernels, uint64_t begin_ns,
                 uint64_t end_ns) {
  if (!tracer.open) return;
  const uint64_t correlation = ++tracer.last_correlation;
  if (const auto at = kOps.find(function); at != kOps.end() && records(Domain::kHipApi, at->second)) {
    if (!tracer.ids.empty()) {
      Record id{};
      id.domain = static_cast<uint32_t>(Domain::kExtApi);
      id.op = static_cast<uint32_t>(roctracer::ExtOp::kExternalId);
      id.correlation_id = correlation;
      id.external_id = tracer.ids.back();
      write(id);
    }
    Record call{};
    call.domain = static_cast<uint32_t>(Domain::kHipApi);
    call.op = at->second;
    call.correlation_id = correlation;
    call.begin_ns = begin_ns - 10;
    call.end_ns = begin_ns;
    write(call);
  }
  for (int i = 0; i < num_kernels; ++i) {
    const bool copy = std::strcmp(kernels[i], "") == 0;
    const auto op = copy ? roctracer::HipOp::kCopy : roctracer::HipOp::kDispatch;
    if (!records(Domain::kHipOps, static_cast<uint32_t>(op))) continue;
    Record work{};
    work.domain = static_cast<uint32_t>(Domain::kHipOps);
    work.op = static_cast<uint32_t>(op);
    work.correlation_id = correlation;
    work.begin_ns = begin_ns;
    work.end_ns = end_ns;
    if (copy)
      work.bytes = 4096;
    else
      work.kernel_name = std::strcmp(kernels[i], "unnamed") == 0 ? nullptr : kernels[i];
    write(work);
  }
}
bool fake_is_clean() { return !tracer.open && tracer.enabled.empty() && tracer.ids.empty(); }

}  // extern "C"
