// C interface of the library, called by localspec/llama/kernels.py.
#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define LOCALSPEC_API extern "C" __declspec(dllexport)
#else
#define LOCALSPEC_API extern "C" __attribute__((visibility("default")))
#endif

// The only build of ggml that it may be started with: "llama-cpp-python 0.3.36".
LOCALSPEC_API const char * localspec_kernels_built_for(void);

// Instruction sets that are compiled in and that this CPU has, best first, separated by commas.
LOCALSPEC_API const char * localspec_kernels_supported(void);

// Inserts the buffer type into ggml. Call it before the first model is opened and before anything lists
// the CPU's extra buffer types, because ggml keeps that list. Idempotent.
//
// isa: one of the supported names; null or "" for the best.
// Returns null, or the reason for a failure.
LOCALSPEC_API const char * localspec_kernels_start(const char * ggml_cpu_path, const char * ggml_base_path,
                                                   const char * isa);

// Whether models that this thread opens from now on use the kernels, and whether the caches of contexts
// that it creates take memory only as they are filled; initially yes.
LOCALSPEC_API void localspec_kernels_take(int on);

// This thread's passes multiply only by the listed tiles of 16 rows of the matrix with `rows` rows, in
// ascending order; products with other rows are -1e30. `tiles` is read until a call with null.
LOCALSPEC_API void localspec_kernels_choose(const int32_t * tiles, int64_t count, int64_t rows);

// Positions of the cells that this thread's calls of llama_state_*_set_data restore, in the order of
// the state, until a call with null.
LOCALSPEC_API void localspec_kernels_restoring(const int32_t * positions, int64_t n);

// Operations of this thread's passes that were left to ggml although their results may depend on the
// other tokens of the pass: products, attention, and cells of unknown position. Never decreases; a pass
// that adds nothing is batch-invariant.
LOCALSPEC_API int64_t localspec_kernels_left(void);

// Since the start: tensors taken, tensors left to ggml, bytes repacked, microseconds of repacking.
LOCALSPEC_API void localspec_kernels_counts(int64_t out[4]);

// For idle times: moves weights that loading left in pages of usual size into the next huge page. Takes
// up to some milliseconds; returns 0 when there is nothing to do.
LOCALSPEC_API int localspec_kernels_make_page_huge(void);

// From now on this llama_context keeps the graphs of its short passes, one for each size. `decode`: the
// llama_decode that serves it. Returns whether it does: only without other devices, and on Linux.
LOCALSPEC_API int localspec_kernels_keep_graphs(void * context, void * decode);

// Frees these graphs; call it before the context is freed.
LOCALSPEC_API void localspec_kernels_drop_graphs(void * context);
