// rcverbs.hpp — the whole library. Start reading with connection.hpp.
//
//     boost::asio::io_context io;
//     rcverbs::connection c{io};
//     c.async_connect({"192.168.0.1", 7471}, [](rcverbs::error_code ec) {
//         std::cout << (ec ? ec.message() : "connected") << '\n';
//     });
//     io.run();
#pragma once

#include <rcverbs/acceptor.hpp>
#include <rcverbs/access_flags.hpp>
#include <rcverbs/authentication.hpp>
#include <rcverbs/backoff_options.hpp>
#include <rcverbs/batch.hpp>
#include <rcverbs/blocking.hpp>
#include <rcverbs/bytes_view.hpp>
#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/registration_limit.hpp>
#include <rcverbs/channel_error.hpp>
#include <rcverbs/close_reason.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/connection_base.hpp>
#include <rcverbs/connection_request.hpp>
#include <rcverbs/connector.hpp>
#include <rcverbs/device.hpp>
#include <rcverbs/endpoint.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/keys.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/memory_lease.hpp>
#include <rcverbs/memory_pool.hpp>
#include <rcverbs/memory_region.hpp>
#include <rcverbs/message.hpp>
#include <rcverbs/message_channel.hpp>
#include <rcverbs/op.hpp>
#include <rcverbs/open_domain.hpp>
#include <rcverbs/options.hpp>
#include <rcverbs/poller.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/queue_pair_address.hpp>
#include <rcverbs/receive_result.hpp>
#include <rcverbs/remote_region.hpp>
#include <rcverbs/request_channel.hpp>
#include <rcverbs/session.hpp>
#include <rcverbs/session_error.hpp>
#include <rcverbs/shared_receive_queue.hpp>
#include <rcverbs/slot_pool.hpp>
#include <rcverbs/statistics.hpp>
