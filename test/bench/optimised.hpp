// optimised.hpp — keeps a benchmark from measuring code that was compiled without optimisation.
#pragma once

#include <cstdio>
#include <cstring>

namespace bench {

/// True in an optimised build, or if the first argument is --allow-unoptimised, which is removed. Else
/// prints why the benchmark does not run.
inline bool may_run(int& argc, char** argv) {
    bool const is_allowed = argc > 1 && std::strcmp(argv[1], "--allow-unoptimised") == 0;
    if (is_allowed) {
        for (int i = 1; i < argc; ++i) argv[i] = argv[i + 1];
        --argc;
    }
#ifdef __OPTIMIZE__
    return true;
#else
    if (is_allowed) return true;
    std::fprintf(
        stderr,
        "%s was compiled without optimisation: its figures would say nothing. "
        "--allow-unoptimised as the first argument runs it all the same.\n",
        argv[0]
    );
    return false;
#endif
}

}  // namespace bench
