// A barrier for passes over repacked weights, in place of OpenMP's.
#pragma once

#include "ggml_abi.h"

namespace localspec {

// Makes ggml call our barrier. `cpu`: libggml-cpu, from dlopen; `barrier`: its ggml_barrier, which is
// called where ours is not used. Returns the one that operations must call. Changes nothing if ggml was
// built without GNU OpenMP, because its own barrier is as fast.
using Barrier = void (*)(ggml_abi::Threadpool *);
Barrier replace_barrier(void * cpu, Barrier barrier);

// Called by each thread at the beginning of an operation on repacked weights: from the second one of a
// pass on, its threads wait with our barrier.
void join_barrier(const ggml_abi::ComputeParams * params, const ggml_abi::Tensor * op);

}  // namespace localspec
