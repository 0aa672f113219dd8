// One path for every page: a page of ours is told as pages of 64 tokens, which is what DTK's flash attention
// takes; K's of page p are p * (page_stride / 64 tokens) + 0 .., and V's lie a plane behind, in that order.
#include "ops/device/prefill_library.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <tuple>

#include "core/log.h"
#include "ops/device/activation.h"
#include "ops/device/hip_library.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/paged_kv.h"
#include "ops/device/prefill_interface.h"
#include "ops/device/prefill_trial.h"

namespace longspan::ops::device {
namespace {

constexpr Index kPageTokens = 64;  // of the library

// LONGSPAN_PREFILL names another library, or "none"; the emulator has no other.
std::string library_names() {
  if (const char* const named = std::getenv("LONGSPAN_PREFILL"))
    return std::string_view(named) == "none" ? "" : named;
  return std::string_view(api::kName) == "hip" ? "liblongspan_dtk_attention.so" : "";
}

struct Library {
  decltype(&longspan_prefill) call = nullptr;
  std::string name;  // "hg_prefix_prefill_varlen_fwd, torch 2.9.1"
  std::string path;
};

struct Search {
  std::optional<Library> library;
  std::string reason;
};

template <class Fn>
Fn find_symbol(void* library, const char* name) {
  return reinterpret_cast<Fn>(::dlsym(library, name));
}

Search try_file(const std::string& file) {
  Search search;
  void* const loaded = open_hip_library(file, search.reason);
  if (loaded == nullptr) return search;
  const auto version = find_symbol<decltype(&longspan_prefill_version)>(loaded, "longspan_prefill_version");
  const auto name = find_symbol<decltype(&longspan_prefill_name)>(loaded, "longspan_prefill_name");
  const auto call = find_symbol<decltype(&longspan_prefill)>(loaded, "longspan_prefill");
  if (version == nullptr || name == nullptr || call == nullptr)
    search.reason = fmt::format("{} has no {}", file,
                                version == nullptr ? "longspan_prefill_version"
                                : name == nullptr  ? "longspan_prefill_name"
                                                   : "longspan_prefill");
  else if (version() != LONGSPAN_PREFILL_VERSION)
    search.reason = fmt::format("{} speaks version {}, need {}", file, version(), LONGSPAN_PREFILL_VERSION);
  else if (::dlsym(loaded, "hipMalloc") != hip_runtime_symbol())
    search.reason = fmt::format("{} belongs to another HIP runtime than this program", file);
  else
    search.library = {.call = call, .name = name(), .path = file_of(reinterpret_cast<void*>(call))};
  return search;
}

Search find_library() {
  const std::string names = library_names();
  if (names.empty()) return {.library = {}, .reason = "none is looked for"};
  Search best{.library = {}, .reason = fmt::format("found none of {}", names)};
  for (const std::string& file : hip_library_files(names)) {
    Search search = try_file(file);
    if (search.library) return search;
    if (!search.reason.empty()) best.reason = std::move(search.reason);
  }
  return best;
}

// One line of the gate.
struct Condition {
  const char* name;
  bool (*holds)(const PrefillShape&);
  std::string (*text)(const PrefillShape&);
};

constexpr Condition kConditions[] = {
    {"dtype", [](const PrefillShape& s) { return s.dtype == DType::kBF16 || s.dtype == DType::kF16; },
     [](const PrefillShape& s) {
       return fmt::format("got {}, need bfloat16 or float16", dtype_name(s.dtype));
     }},
    {"kv_dtype", [](const PrefillShape& s) { return s.kv_dtype == s.dtype; },
     [](const PrefillShape& s) {
       return fmt::format("got {}, need {}", dtype_name(s.kv_dtype), dtype_name(s.dtype));
     }},
    {"head_dim", [](const PrefillShape& s) { return s.head_dim == 128 || s.head_dim == 256; },
     [](const PrefillShape& s) { return fmt::format("got {}, need 128 or 256", s.head_dim); }},
    {"gqa_ratio",
     [](const PrefillShape& s) { return s.num_kv_heads > 0 && s.num_q_heads % s.num_kv_heads == 0; },
     [](const PrefillShape& s) {
       return fmt::format("got {} and {} heads, need a multiple", s.num_q_heads, s.num_kv_heads);
     }},
    {"page_multiple",
     [](const PrefillShape& s) { return s.page_tokens > 0 && s.page_tokens % kPageTokens == 0; },
     [](const PrefillShape& s) {
       return fmt::format("got {}, need a multiple of {}", s.page_tokens, kPageTokens);
     }},
};

// Block: a sequence. Threads over its pages of the library's size.
struct SmallPagesKernel {
  static constexpr int kThreads = 256;
  Matrix<int32_t> table;  // [num_seqs, max_pages]
  Global<int32_t> out;    // [num_seqs, max_pages * parts]
  int max_pages;
  int parts;   // of a page
  int stride;  // parts from one page to the next

  DEVICE_FN void operator()() const {
    const int64_t seq = block_idx().x;
    for (int i = thread_idx(); i < max_pages * parts; i += kThreads) {
      const int page = table.row(seq).get(i / parts);
      out.put(seq * max_pages * parts + i, page < 0 ? -1 : page * stride + i % parts);
    }
  }
};

// Block: a row of the call's sequences. out = rnd(out * rnd(sigmoid(gate))), in place.
template <class T>
struct GateRowsKernel {
  static constexpr int kThreads = 256;
  Heads<T> gate;  // [num_rows, num_heads, head_dim]
  Heads<T> out;   // [num_rows, num_heads, head_dim]
  Global<int32_t> query_start_loc;
  int first_seq;
  int end_seq;
  int num_heads;
  int head_dim;

  DEVICE_FN void operator()() const {
    const int row = block_idx().x;
    if (row < query_start_loc.get(first_seq) || row >= query_start_loc.get(end_seq)) return;
    for (int i = thread_idx(); i < num_heads * head_dim; i += kThreads) {
      const Global<T> to = out.row(row, i / head_dim);
      const float open = rounded<T>(sigmoid(gate.row(row, i / head_dim).at(i % head_dim)));
      to.set(i % head_dim, to.at(i % head_dim) * open);
    }
  }
};

void gate_rows(Device& device, const Attention& args) {
  dispatch_element(args.q.dtype, [&]<class T>() {
    launch(device, {.name = "gate_rows", .grid = {static_cast<int>(args.q.dim(0))}},
           GateRowsKernel<T>{.gate = heads<T>(args.gate),
                             .out = heads<T>(args.out),
                             .query_start_loc = global<int32_t>(args.seqs.query_start_loc),
                             .first_seq = static_cast<int>(args.first_seq),
                             .end_seq = static_cast<int>(args.first_seq + args.num_seqs),
                             .num_heads = static_cast<int>(args.q.dim(1)),
                             .head_dim = static_cast<int>(args.q.dim(2))});
  });
}

PrefillShape shape_of(const Attention& args) {
  return {.dtype = args.q.dtype,
          .kv_dtype = args.kv.dtype,
          .head_dim = args.kv.head_dim,
          .page_tokens = args.kv.page_tokens,
          .num_q_heads = args.q.dim(1),
          .num_kv_heads = args.kv.num_kv_heads};
}

using Key = std::tuple<DType, DType, Index, Index, Index, Index>;

Key key_of(const PrefillShape& s) {
  return {s.dtype, s.kv_dtype, s.head_dim, s.page_tokens, s.num_q_heads, s.num_kv_heads};
}

}  // namespace

struct PrefillLibrary::Impl {
  explicit Impl(Device& on) : device(on), small_pages(on), search(find_library()) {}

  // Empty, or why nothing was done.
  std::string run(const Attention& args) {
    const KvCache& kv = args.kv;
    const auto size = static_cast<Index>(dtype_size(kv.dtype));
    const Index part_bytes = kPageTokens * kv.num_kv_heads * kv.head_dim * size;
    if (kv.page_stride_bytes % part_bytes != 0)
      return fmt::format("pages {} bytes apart, need a multiple of {}", kv.page_stride_bytes, part_bytes);
    const Index parts = kv.page_tokens / kPageTokens, stride = kv.page_stride_bytes / part_bytes;
    const Index max_pages = args.block_table.dim(1);
    auto* const table = static_cast<int32_t*>(
        small_pages.reserve(static_cast<size_t>(args.num_seqs * max_pages * parts) * sizeof(int32_t)));
    launch(device, {.name = "small_pages", .grid = {static_cast<int>(args.num_seqs)}},
           SmallPagesKernel{.table = matrix<int32_t>(args.block_table.rows(args.first_seq, args.num_seqs)),
                            .out = {table},
                            .max_pages = static_cast<int>(max_pages),
                            .parts = static_cast<int>(parts),
                            .stride = static_cast<int>(stride)});
    const LongspanPrefill call{
        .stream = device.stream(),
        .device = device.info().index,
        .dtype = args.q.dtype == DType::kBF16 ? LONGSPAN_PREFILL_BF16 : LONGSPAN_PREFILL_F16,
        .q = args.q.data,
        .out = args.out.data,
        .q_row_stride = args.q.stride(0),
        .q_head_stride = args.q.stride(1),
        .out_row_stride = args.out.stride(0),
        .out_head_stride = args.out.stride(1),
        .k = kv.data,
        .v = static_cast<char*>(kv.data) + parts * part_bytes,
        .num_pages = (kv.num_pages - 1) * stride + parts,
        .block_table = table,
        .query_start_loc = static_cast<int32_t*>(args.seqs.query_start_loc.data) + args.first_seq,
        .seq_lens = static_cast<int32_t*>(args.seqs.seq_lens.data) + args.first_seq,
        .num_rows = static_cast<int32_t>(args.q.dim(0)),
        .num_seqs = static_cast<int32_t>(args.num_seqs),
        .max_pages = static_cast<int32_t>(max_pages * parts),
        .page_tokens = static_cast<int32_t>(kPageTokens),
        .num_q_heads = static_cast<int32_t>(args.q.dim(1)),
        .num_kv_heads = static_cast<int32_t>(kv.num_kv_heads),
        .head_dim = static_cast<int32_t>(kv.head_dim),
        .scale = args.scale};
    std::array<char, 1024> error{};
    device.before_launch();  // the current device is ours
    const int32_t status = search.library->call(&call, error.data(), error.size());
    device.after_launch("vendor_prefill", 0, 0);
    error.back() = 0;
    if (status != 0) return error[0] != 0 ? error.data() : fmt::format("status {}", status);
    if (!args.gate.empty()) gate_rows(device, args);
    return "";
  }

  std::string judge(const PrefillShape& shape) {
    if (!search.library) return "library: " + search.reason;
    for (const Condition& condition : kConditions)
      if (!condition.holds(shape)) return fmt::format("{}: {}", condition.name, condition.text(shape));
    const std::string fault = fault_of(device, shape, [this](const Attention& args) { return run(args); });
    return fault.empty() ? "" : fmt::format("proof: {} {}", search.library->path, fault);
  }

  Device& device;
  Scratch small_pages;  // [num_seqs, max_pages] of the library's size
  Search search;
  std::map<Key, std::string> judged;
  std::string failure;  // of a call, once the library was in use
};

PrefillLibrary::PrefillLibrary(Device& device) : impl_(std::make_unique<Impl>(device)) {}
PrefillLibrary::~PrefillLibrary() = default;

std::string PrefillLibrary::name() const { return impl_->search.library ? impl_->search.library->name : ""; }

std::string PrefillLibrary::obstacle(const PrefillShape& shape) {
  if (!impl_->failure.empty()) return impl_->failure;
  const auto [found, fresh] = impl_->judged.try_emplace(key_of(shape));
  if (!fresh) return found->second;
  found->second = impl_->judge(shape);
  if (!library_names().empty())
    log(LogLevel::kInfo, "vendor prefill: {}",
        found->second.empty() ? fmt::format("{} ({}) proved itself", name(), impl_->search.library->path)
                              : "own kernels, " + found->second);
  return found->second;
}

bool PrefillLibrary::attention(const Attention& args) {
  if (!obstacle(shape_of(args)).empty()) return false;
  const std::string error = impl_->run(args);
  if (error.empty()) return true;
  impl_->failure = "call: " + error;
  log(LogLevel::kError, "{} failed: {}; the own kernel from now on, whose rounding is another", name(),
      error);
  return false;
}

std::string find_prefill_library() {
  const Search search = find_library();
  if (!search.library) return "none: " + search.reason;
  return fmt::format("{} ({})", search.library->name, search.library->path);
}

}  // namespace longspan::ops::device
