// asio_settings.hpp — lets a program that is compiled with another Boost than the library, or with
// other settings of Asio, fail to link. Executors and handlers of Asio cross the border of the
// library; their layout differs between versions, and so does what a context consists of between
// settings. Internal.
#pragma once

#include <boost/asio/detail/config.hpp>
#include <boost/version.hpp>

#include <rcverbs/export.hpp>

// Without RTTI, too.
#if defined(BOOST_ASIO_NO_TYPEID)
#define RCVERBS_ASIO_TYPEID _no_typeid
#else
#define RCVERBS_ASIO_TYPEID
#endif
#if defined(BOOST_ASIO_ENABLE_HANDLER_TRACKING)
#define RCVERBS_ASIO_TRACKING _handler_tracking
#else
#define RCVERBS_ASIO_TRACKING
#endif
#if defined(BOOST_ASIO_HAS_IO_URING)
#define RCVERBS_ASIO_URING _io_uring
#else
#define RCVERBS_ASIO_URING
#endif
#if defined(BOOST_ASIO_HAS_EPOLL)
#define RCVERBS_ASIO_EPOLL
#else
#define RCVERBS_ASIO_EPOLL _no_epoll
#endif
#if defined(BOOST_ASIO_HAS_THREADS)
#define RCVERBS_ASIO_THREADS
#else
#define RCVERBS_ASIO_THREADS _no_threads
#endif

#define RCVERBS_JOINED(version_, a_, b_, c_, d_, e_) rcverbs_boost_##version_##a_##b_##c_##d_##e_
#define RCVERBS_JOIN(version_, a_, b_, c_, d_, e_) RCVERBS_JOINED(version_, a_, b_, c_, d_, e_)
// Such as rcverbs_boost_108100, or rcverbs_boost_108100_no_typeid. The library has that of its own
// build.
#define RCVERBS_ASIO_SETTINGS  \
    RCVERBS_JOIN(              \
        BOOST_VERSION,         \
        RCVERBS_ASIO_TYPEID,   \
        RCVERBS_ASIO_TRACKING, \
        RCVERBS_ASIO_URING,    \
        RCVERBS_ASIO_EPOLL,    \
        RCVERBS_ASIO_THREADS   \
    )

extern "C" RCVERBS_EXPORT void RCVERBS_ASIO_SETTINGS() noexcept;

namespace rcverbs::detail {

[[gnu::used]] inline void (*const asio_of_this_program)() noexcept = &RCVERBS_ASIO_SETTINGS;

}  // namespace rcverbs::detail
