// rcverbs.hpp — the whole library. Start reading with connection.hpp.
#pragma once

#include <rcverbs/acceptor.hpp>
#include <rcverbs/access_flags.hpp>
#include <rcverbs/batch.hpp>
#include <rcverbs/buffer.hpp>
#include <rcverbs/close_reason.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/connector.hpp>
#include <rcverbs/data_operations.hpp>
#include <rcverbs/device.hpp>
#include <rcverbs/endpoint.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/keys.hpp>
#include <rcverbs/local_slice.hpp>
#include <rcverbs/loop_descriptor.hpp>
#include <rcverbs/memory_region.hpp>
#include <rcverbs/options.hpp>
#include <rcverbs/poller.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/queue_pair_address.hpp>
#include <rcverbs/received.hpp>
#include <rcverbs/remote_region.hpp>
#include <rcverbs/session.hpp>
#include <rcverbs/shared_receive_queue.hpp>
#include <rcverbs/statistics.hpp>
