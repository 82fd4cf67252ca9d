// A barrier for passes over repacked weights, in place of OpenMP's.
#pragma once

#include "ggml_abi.h"

namespace localspec {

// Makes ggml call ours. `cpu`: libggml-cpu, from dlopen; `barrier`: its ggml_barrier, which is called
// where ours is not used. Returns what operations are to call. Nothing changes if ggml was built without
// GNU OpenMP, as its own barrier is as quick.
using Barrier = void (*)(ggml_abi::Threadpool *);
Barrier replace_barrier(void * cpu, Barrier barrier);

// Called by each thread at the beginning of an operation on repacked weights: from the second one of a
// pass on, its threads wait with our barrier.
void join_barrier(const ggml_abi::ComputeParams * params, const ggml_abi::Tensor * op);

}  // namespace localspec
