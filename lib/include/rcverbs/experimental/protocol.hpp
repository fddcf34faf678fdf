// protocol.hpp — what a protocol on top of a connection is made with. Experimental: it may change.
#pragma once

#include <rcverbs/experimental/protocol/actor.hpp>
#include <rcverbs/experimental/protocol/deadline.hpp>
#include <rcverbs/experimental/protocol/driver.hpp>
#include <rcverbs/experimental/protocol/handle.hpp>
#include <rcverbs/experimental/protocol/handshake.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>
#include <rcverbs/experimental/protocol/orderly_end.hpp>
#include <rcverbs/experimental/protocol/published.hpp>
#include <rcverbs/experimental/protocol/slots.hpp>
#include <rcverbs/experimental/protocol/wait_list.hpp>
