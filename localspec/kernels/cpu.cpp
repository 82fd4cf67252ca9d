// Which of the compiled instruction sets this CPU, and its operating system, have.
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace localspec {

#if defined(__x86_64__)

bool cpu_has(const char * name) {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!strcmp(name, "avx2")) return avx2;
    if (!strcmp(name, "avx512"))
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni");
    if (!strcmp(name, "avxvnni")) {     // gcc knows no name for it before 13
        unsigned a = 0, b = 0, c = 0, d = 0;
        return avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
    }
    return false;
}

#elif defined(__aarch64__) && defined(__linux__)

bool cpu_has(const char * name) {
    constexpr unsigned long DOTPROD = 1ul << 20, HALVES = 1ul << 10;    // HWCAP_ASIMDDP, HWCAP_ASIMDHP
    constexpr unsigned long I8MM = 1ul << 13;                           // HWCAP2_I8MM
    const bool dotprod = (getauxval(AT_HWCAP) & (DOTPROD | HALVES)) == (DOTPROD | HALVES);
    if (!strcmp(name, "neon-dotprod")) return dotprod;
    return !strcmp(name, "neon-i8mm") && dotprod && (getauxval(AT_HWCAP2) & I8MM);
}

#elif defined(__APPLE__)

static bool feature(const char * name) {
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname(name, &value, &size, nullptr, 0) && value;
}

bool cpu_has(const char * name) {
    const bool dotprod = feature("hw.optional.arm.FEAT_DotProd");
    if (!strcmp(name, "neon-dotprod")) return dotprod;
    return !strcmp(name, "neon-i8mm") && dotprod && feature("hw.optional.arm.FEAT_I8MM");
}

#else

bool cpu_has(const char *) { return false; }

#endif

}  // namespace localspec
