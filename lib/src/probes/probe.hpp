// probe.hpp — static probes (USDT) for bpftrace, SystemTap, perf and gdb: docs/guides/tracing.md lists them.
//
// A probe is one instruction that does nothing, and a note in the binary that says where its arguments
// are. So an argument must be at hand: a probe on the data path computes nothing. Without sys/sdt.h
// there are none. Source: <sys/sdt.h> of SystemTap.
#pragma once

#ifdef RCVERBS_HAS_PROBES
#include <sys/sdt.h>
#define RCVERBS_PROBE1(name, a) STAP_PROBE1(rcverbs, name, a)
#define RCVERBS_PROBE2(name, a, b) STAP_PROBE2(rcverbs, name, a, b)
#define RCVERBS_PROBE3(name, a, b, c) STAP_PROBE3(rcverbs, name, a, b, c)
#else
#define RCVERBS_PROBE1(name, a) static_cast<void>(0)
#define RCVERBS_PROBE2(name, a, b) static_cast<void>(0)
#define RCVERBS_PROBE3(name, a, b, c) static_cast<void>(0)
#endif
