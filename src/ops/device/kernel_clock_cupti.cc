// Kernel times on NVIDIA, by CUPTI's activity records. libcupti is looked for when the first clock starts,
// and stays; nothing needs it before.
#include <cupti.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "core/error.h"
#include "ops/device/kernel_event_log.h"

namespace longspan::ops::device {
namespace {

constexpr size_t kRecordBytes = size_t{2} << 20;  // of a buffer that CUPTI fills

// A call's id comes with the record of the outermost API call around a launch: the runtime's where we launch;
// the driver's (and there, of launches alone) where a library does. Driver records by themselves are not
// enough: those inside a call of the runtime have no id.
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                         CUPTI_ACTIVITY_KIND_RUNTIME};
constexpr CUpti_CallbackId kLaunches[] = {
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,   CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz};

struct Library {
  decltype(&cuptiGetVersion) version;
  decltype(&cuptiGetResultString) result_string;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityRegisterTimestampCallback) register_timestamp;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityEnableDriverApi) enable_driver_api;
  decltype(&cuptiActivityFlushAll) flush_all;
  decltype(&cuptiActivityGetNextRecord) next_record;
  decltype(&cuptiActivityGetNumDroppedRecords) num_dropped;
  decltype(&cuptiActivityPushExternalCorrelationId) push_id;
  decltype(&cuptiActivityPopExternalCorrelationId) pop_id;

  void check(const char* what, CUptiResult result) const {
    if (result == CUPTI_SUCCESS) return;
    const char* text = "";
    (void)result_string(result, &text);
    fail(ErrorKind::kEnvironment, "CUPTI refuses ({}): {}", what, text);
  }
};

void* open_library() {
  const std::string name = fmt::format("libcupti.so.{}", CUDA_VERSION / 1000);
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"})
    if (void* const handle = ::dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  fail(ErrorKind::kEnvironment, "{} was not found: put its folder into LD_LIBRARY_PATH", name);
}

template <class Fn>
void find_function(void* handle, const char* name, Fn& out) {
  out = reinterpret_cast<Fn>(::dlsym(handle, name));
  if (out == nullptr) fail(ErrorKind::kEnvironment, "libcupti has no {}: need a newer one", name);
}

uint64_t CUPTIAPI timestamp() { return static_cast<uint64_t>(steady_now_ns()); }

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size_bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(ACTIVITY_RECORD_ALIGNMENT, kRecordBytes));
  *size_bytes = *buffer == nullptr ? 0 : kRecordBytes;
  *max_records = 0;  // as many as fit
}
void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes);

Library load_library() {
  void* const handle = open_library();
  Library cupti{};
  find_function(handle, "cuptiGetVersion", cupti.version);
  find_function(handle, "cuptiGetResultString", cupti.result_string);
  find_function(handle, "cuptiActivityRegisterCallbacks", cupti.register_callbacks);
  find_function(handle, "cuptiActivityRegisterTimestampCallback", cupti.register_timestamp);
  find_function(handle, "cuptiActivityEnable", cupti.enable);
  find_function(handle, "cuptiActivityDisable", cupti.disable);
  find_function(handle, "cuptiActivityEnableDriverApi", cupti.enable_driver_api);
  find_function(handle, "cuptiActivityFlushAll", cupti.flush_all);
  find_function(handle, "cuptiActivityGetNextRecord", cupti.next_record);
  find_function(handle, "cuptiActivityGetNumDroppedRecords", cupti.num_dropped);
  find_function(handle, "cuptiActivityPushExternalCorrelationId", cupti.push_id);
  find_function(handle, "cuptiActivityPopExternalCorrelationId", cupti.pop_id);
  uint32_t version = 0;
  cupti.check("version", cupti.version(&version));
  if (version < CUPTI_API_VERSION)  // its records may be shorter
    fail(ErrorKind::kEnvironment, "libcupti: got version {}, need {}", version, CUPTI_API_VERSION);
  cupti.check("callbacks", cupti.register_callbacks(give_buffer, take_buffer));
  cupti.check("timestamps", cupti.register_timestamp(timestamp));
  return cupti;
}

// Throws until it is there.
const Library& library() {
  static const Library cupti = load_library();
  return cupti;
}

class CuptiClock;

// Whose buffers CUPTI returns, on threads of its own.
struct Running {
  std::mutex mutex;
  CuptiClock* clock = nullptr;  // guarded by mutex
};
Running& running() {
  static Running one;
  return one;
}

class CuptiClock final : public KernelClock {
 public:
  CuptiClock() : cupti_(library()) {
    {
      const std::lock_guard lock(running().mutex);
      if (running().clock != nullptr) fail(ErrorKind::kEnvironment, "another kernel clock runs");
      running().clock = this;
    }
    try {
      for (const CUpti_ActivityKind kind : kKinds) cupti_.check("kernel records", cupti_.enable(kind));
      for (const CUpti_CallbackId launch : kLaunches)
        cupti_.check("launch records", cupti_.enable_driver_api(launch, 1));
    } catch (...) {
      CuptiClock::stop();
      throw;
    }
  }
  ~CuptiClock() override { CuptiClock::stop(); }

  void open(uint32_t call) override { (void)cupti_.push_id(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, call); }
  void close() override {
    uint64_t last = 0;
    (void)cupti_.pop_id(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
  }
  KernelEvents take() override {
    if (!stopped_) (void)cupti_.flush_all(0);
    const std::lock_guard lock(mutex_);
    return log_.take();
  }
  void stop() override {
    if (stopped_.exchange(true)) return;
    disable();
    (void)cupti_.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    const std::lock_guard lock(running().mutex);
    running().clock = nullptr;
  }

  void read(uint8_t* buffer, size_t size_bytes) {
    const std::lock_guard lock(mutex_);
    CUpti_Activity* record = nullptr;
    while (cupti_.next_record(buffer, size_bytes, &record) == CUPTI_SUCCESS) add(*record);
    size_t dropped = 0;
    if (cupti_.num_dropped(nullptr, 0, &dropped) == CUPTI_SUCCESS)
      log_.count_lost(static_cast<int64_t>(dropped));
  }

 private:
  void disable() {
    for (const CUpti_CallbackId launch : kLaunches) (void)cupti_.enable_driver_api(launch, 0);
    for (const CUpti_ActivityKind kind : kKinds) (void)cupti_.disable(kind);
  }

  void add(const CUpti_Activity& record) {
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_KERNEL:
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
        return add_timed(kernel, KernelEvent::Kind::kKernel, log_.index_of(kernel.name));
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        return add_timed(reinterpret_cast<const CUpti_ActivityMemcpy6&>(record), KernelEvent::Kind::kCopy, 0);
      case CUPTI_ACTIVITY_KIND_MEMSET:
        return add_timed(reinterpret_cast<const CUpti_ActivityMemset4&>(record), KernelEvent::Kind::kCopy, 0);
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& link = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(record);
        return log_.add({.ticket = link.correlationId,
                         .value = static_cast<uint32_t>(link.externalId),
                         .kind = KernelEvent::Kind::kCall});
      }
      default:  // the API calls themselves
        return;
    }
  }

  template <class Record>
  void add_timed(const Record& record, KernelEvent::Kind kind, uint32_t value) {
    if (record.start == 0 || record.end < record.start) return;  // under way when the clock was stopped
    log_.add({.begin_ns = static_cast<int64_t>(record.start),
              .end_ns = static_cast<int64_t>(record.end),
              .ticket = record.correlationId,
              .value = value,
              .kind = kind});
  }

  const Library& cupti_;
  std::mutex mutex_;
  KernelEventLog log_;  // guarded by mutex_
  std::atomic<bool> stopped_ = false;
};

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  {
    const std::lock_guard lock(running().mutex);
    if (running().clock != nullptr && valid_bytes > 0) running().clock->read(buffer, valid_bytes);
  }
  std::free(buffer);
}

}  // namespace

std::unique_ptr<KernelClock> start_kernel_clock() { return std::make_unique<CuptiClock>(); }

}  // namespace longspan::ops::device
