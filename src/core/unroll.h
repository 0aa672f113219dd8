// A loop over registers, spelled out: `UNROLL(8) for (...)`. Each compiler reads only its own pragma, and
// without one an array of vectors stays in memory.
#pragma once

#define LONGSPAN_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define UNROLL(count) LONGSPAN_PRAGMA(clang loop unroll_count(count))
#else
#define UNROLL(count) LONGSPAN_PRAGMA(GCC unroll count)
#endif
