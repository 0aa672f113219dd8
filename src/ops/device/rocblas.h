// The part of rocBLAS's C interface that products need, found in a library at run time: no header and no
// library of rocBLAS is there when this program is built. Types, order of arguments and values are those of
// rocblas-types.h, rocblas-functions.h and rocblas-beta.h (2.47, of ROCm 5.5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace longspan::ops::device::rocblas {

using Handle = struct OpaqueHandle*;

enum class Status : int32_t { kSuccess = 0 };
enum class Operation : int32_t { kNone = 111, kTranspose = 112 };
enum class DataType : int32_t { kF16 = 150, kF32 = 151, kBF16 = 168 };
enum class AtomicsMode : int32_t { kNotAllowed = 0 };
enum class GemmAlgo : int32_t { kStandard = 0, kSolutionIndex = 1 };

// Column-major, D [m, n] = alpha op(A) op(B) + beta C; alpha and beta on the host, of the compute type.
struct Functions {
  Status (*create_handle)(Handle* out);
  Status (*destroy_handle)(Handle);
  Status (*set_stream)(Handle, void* stream);
  Status (*set_atomics_mode)(Handle, AtomicsMode);
  Status (*gemm_ex)(Handle, Operation a_op, Operation b_op, int32_t m, int32_t n, int32_t k,
                    const void* alpha, const void* a, DataType a_type, int32_t lda, const void* b,
                    DataType b_type, int32_t ldb, const void* beta, const void* c, DataType c_type,
                    int32_t ldc, void* d, DataType d_type, int32_t ldd, DataType compute_type, GemmAlgo,
                    int32_t solution, uint32_t flags);
  // The rest is null where a version does not have it. list: null asks for the number.
  Status (*gemm_ex_get_solutions)(Handle, Operation a_op, Operation b_op, int32_t m, int32_t n, int32_t k,
                                  const void* alpha, const void* a, DataType a_type, int32_t lda,
                                  const void* b, DataType b_type, int32_t ldb, const void* beta,
                                  const void* c, DataType c_type, int32_t ldc, void* d, DataType d_type,
                                  int32_t ldd, DataType compute_type, GemmAlgo, uint32_t flags, int32_t* list,
                                  int32_t* list_size);
  Status (*get_version_string)(char* out, size_t size);
};

struct Library {
  Functions functions{};
  std::string path;
  std::string version;  // "4.1.0"; empty where it does not say
};

// What was looked for and found, or why not.
struct Search {
  std::optional<Library> library;
  std::string reason;  // "librocblas.so is not installed"
};

// names: files, separated by spaces, of which the first that serves is taken; looked for beside the HIP
// runtime of this process, then where the system looks. One that fails stays loaded. arch: the library must
// have kernels for it, for it ends the process (SIGABRT) at the first product otherwise; they are files in
// the folder that ROCBLAS_TENSILE_LIBPATH names, or beside the library.
Search find(std::string_view names, std::string_view arch);

}  // namespace longspan::ops::device::rocblas
