// static_providers.hpp — the device drivers of a program that is linked fully statically.
//
//     #include <rcverbs/static_providers.hpp>  // in one source file
//
// libibverbs loads its drivers (providers) at run time. A program that is linked with -static cannot
// load any, and finds no device. Include this header in one source file of such a program, and in no
// other program: it links the providers of libibverbs, which `pkg-config --static --libs rcverbs`
// lists. rcverbs.hpp does not include it.
#pragma once

#ifdef INFINIBAND_VERBS_H
#error "include rcverbs/static_providers.hpp before infiniband/verbs.h"
#endif
#define RDMA_STATIC_PROVIDERS all
#include <infiniband/verbs.h>

namespace rcverbs::detail {

// Registers the providers before main(): they are registered when devices are first listed.
inline bool const has_static_providers = [] {
    int count = 0;
    if (ibv_device** const devices = ibv_get_device_list(&count)) ibv_free_device_list(devices);
    return true;
}();

}  // namespace rcverbs::detail
