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

// Instruction sets that are compiled in and that this CPU has, best first, with commas between them.
LOCALSPEC_API const char * localspec_kernels_supported(void);

// Puts the buffer type into ggml. To be called before the first model is opened and before anybody
// lists the CPU's extra buffer types, as ggml keeps that list. Harmless when repeated.
//
// isa: one of the supported names; null or "" for the best.
// Returns null, or why it was not possible.
LOCALSPEC_API const char * localspec_kernels_start(const char * ggml_cpu_path, const char * ggml_base_path,
                                                   const char * isa);

// Whether models that this thread opens from now on use the kernels, and whether the caches of contexts
// that it makes take memory as they are filled; at first they do.
LOCALSPEC_API void localspec_kernels_take(int on);

// Of the matrix of `rows` rows, this thread's passes multiply with the listed tiles of 16 rows alone, in
// ascending order; products with other rows are -1e30. `tiles` is read until null ends it.
LOCALSPEC_API void localspec_kernels_choose(const int32_t * tiles, int64_t count, int64_t rows);

// Positions of the cells that this thread's calls of llama_state_*_set_data restore, in the order of
// the state; null ends it.
LOCALSPEC_API void localspec_kernels_restoring(const int32_t * positions, int64_t n);

// Operations of this thread's passes that were left to ggml although their numbers may depend on what
// shares the pass: products, attention, and cells whose positions nobody told. Only ever grows; a pass
// that adds nothing gives each token the same bits in any company.
LOCALSPEC_API int64_t localspec_kernels_left(void);

// Since the start: tensors taken, tensors left to ggml, bytes repacked, microseconds of repacking.
LOCALSPEC_API void localspec_kernels_counts(int64_t out[4]);

// Work for times without any: moves weights into the next huge page where loading left them in pages of
// usual size. Takes up to some milliseconds; returns 0 when there is nothing to do.
LOCALSPEC_API int localspec_kernels_make_page_huge(void);

// From now on this llama_context keeps the graphs of its short passes, one for each size. `decode`: the
// llama_decode that serves it. Returns whether it does: only without other devices, and on Linux.
LOCALSPEC_API int localspec_kernels_keep_graphs(void * context, void * decode);

// Frees them; before the context is freed.
LOCALSPEC_API void localspec_kernels_drop_graphs(void * context);
