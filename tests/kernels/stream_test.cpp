// Tests of localspec/kernels/stream.cpp: where the weights of a thread continue. Prefetches have no other result.
#include "../../localspec/kernels/stream.h"

#include <cstdio>

using namespace localspec;

namespace {

int failures = 0;
void check(bool ok, const char * what) {
    printf("%s %s\n", ok ? "ok    " : "FAILED", what);
    failures += !ok;
}

uint8_t memory[1 << 20];
const uint8_t * const first = memory + 640, * const second = memory + 300000, * const third = memory + 100000;
constexpr ptrdiff_t BYTES = 4096;

}  // namespace

int main() {
    const Stream unknown = follow(first, first + BYTES);
    check(unknown.at(first, 64) == first + 64 && unknown.at(first, BYTES) == first + BYTES, "a first pass knows no order");
    check(!prefetch_next(), "nothing to prefetch where the next part is unknown");
    follow(second, second + BYTES);
    follow(third, third + BYTES);

    const Stream known = follow(first, first + BYTES);
    check(known.at(first, BYTES - 1) == first + BYTES - 1, "the last byte of a part");
    check(known.at(first, BYTES) == second && known.at(first + 100, BYTES) == second + 100, "then the next part");
    int count = 0;
    while (count < 1000000 && prefetch_next()) count++;
    check(count > 0 && count < 1000000, "prefetching while waiting ends");

    follow(third, third + BYTES);       // another order than before
    const Stream changed = follow(first, first + BYTES);
    check(changed.at(first, BYTES) == third, "the order is that of the latest pass");
    return failures != 0;
}
