// The part of roctracer's C interface that kernel times need, found in a library at run time as rocBLAS's is.
// Types, order of arguments and values are those of roctracer.h, roctracer_ext.h, roctracer_hip.h and
// ext/prof_protocol.h (4.1, of ROCm 5 and 6; DTK's is of that line).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "ops/device/kernel_clock.h"

namespace longspan::ops::device::roctracer {

enum class Status : int32_t { kSuccess = 0 };
// Ops: what a queue carries out. Api: the runtime's functions. Ext: ids that the program gives its calls.
enum class Domain : uint32_t { kHipOps = 2, kHipApi = 3, kExtApi = 5 };
enum class HipOp : uint32_t { kDispatch = 0, kCopy = 1, kBarrier = 2 };
enum class ExtOp : uint32_t { kExternalId = 1 };

struct Record {
  uint32_t domain;
  uint32_t kind;
  uint32_t op;
  uint64_t correlation_id;  // the same for an API call, the external id around it, and what it put to a queue
  uint64_t begin_ns, end_ns;  // of roctracer_get_timestamp
  union {
    struct {
      int32_t device_id;
      uint64_t queue_id;
    };
    uint64_t external_id;  // of the external domain
  };
  union {
    size_t bytes;
    const char* kernel_name;  // of a dispatch; null from versions that do not tell it
  };
};
static_assert(sizeof(Record) == 64);

struct PoolProperties {
  uint32_t mode;
  size_t buffer_bytes;
  void (*allocate)(char** at, size_t bytes, void* argument);  // null: malloc
  void* allocate_argument;
  void (*take_buffer)(const char* begin, const char* end, void* argument);  // on a thread of the library's
  void* take_argument;
};

struct Functions {
  uint32_t (*version_major)();
  const char* (*error_string)();
  Status (*set_properties)(Domain, void* properties);
  Status (*op_code)(Domain, const char* name, uint32_t* op, uint32_t* kind);
  Status (*open_pool)(const PoolProperties*, void** pool);
  Status (*close_pool)(void* pool);
  Status (*enable_op_activity)(Domain, uint32_t op, void* pool);
  Status (*disable_op_activity)(Domain, uint32_t op);
  Status (*flush_activity)(void* pool);
  Status (*next_record)(const Record*, const Record** next);
  Status (*get_timestamp)(uint64_t* ns);
  Status (*push_external_id)(uint64_t id);
  Status (*pop_external_id)(uint64_t* last);
};

inline constexpr std::string_view kLibraryNames = "libroctracer64.so.4 libroctracer64.so";

// names: see hip_library_files. Throws kEnvironment as start_kernel_clock does.
std::unique_ptr<KernelClock> start_clock(std::string_view names);

}  // namespace longspan::ops::device::roctracer
