#include "remote/region_allocations.hpp"

#include <bit>
#include <utility>

#include "remote/memory_core.hpp"
#include "remote/region_core.hpp"

namespace rcverbs::detail {

using wire::region_operation;
using wire::region_status;

void region_allocations::allocate(
    std::uint64_t bytes, allocate_options const& options, allocation_waiter who
) {
    if (bytes == 0 || !std::has_single_bit(options.alignment))
        return channel_.deliver(std::move(who), errc::invalid_option, {});
    ask_for_memory(
        region_operation::allocate,
        wire::encode(wire::region_allocate{
            wire::region_version, options.is_kept, bytes, options.alignment}),
        channel_errc::no_pool,
        std::move(who)
    );
}

void region_allocations::resume(resume_token const& key, allocation_waiter who) {
    ask_for_memory(
        region_operation::resume,
        wire::encode(wire::region_resume{wire::region_version, key.bytes}),
        channel_errc::no_such_allocation,
        std::move(who)
    );
}

template <class Body>
void region_allocations::ask_for_memory(
    region_operation what, Body const& body, channel_errc none, allocation_waiter who
) {
    if (auto const ec = channel_.usable()) return channel_.deliver(std::move(who), ec, {});
    channel_.ask_peer(
        what,
        body,
        [this, none, question = channel_.finds().open_question(), w = std::move(who)](
            error_code ec, reply const& r
        ) mutable {
            remote_allocation taken;
            if (!ec) taken = take(r, question, none, ec);
            channel_.finds().close_question(question);
            if (ec == channel_errc::malformed_message) channel_.violated();
            channel_.deliver(std::move(w), ec, std::move(taken));
        }
    );
}

remote_allocation region_allocations::take(
    reply const& r, std::uint64_t question, channel_errc none, error_code& ec
) {
    remote_allocation taken;
    switch (static_cast<region_status>(r.status())) {
    case region_status::found: {
        auto const message = wire::decode_allocated(r.bytes(), ec);
        if (!ec) taken.memory = channel_.finds().take(message.memory, question, ec);
        if (ec) return {};
        if (!taken.memory.is_valid()) {
            ec = channel_errc::region_withdrawn;
            return {};
        }
        memory_core::core_of(taken.memory)->mark_allocated();
        taken.token.bytes = message.token;
        taken.bytes_left = message.bytes_left;
        return taken;
    }
    case region_status::over_quota:
    case region_status::exhausted: {
        auto const left = wire::decode_left(r.bytes(), ec);
        if (ec) return {};
        ec = static_cast<region_status>(r.status()) == region_status::exhausted
                 ? channel_errc::pool_exhausted
                 : channel_errc::quota_exceeded;
        taken.bytes_left = left.bytes_left;
        taken.largest_free_bytes = left.largest_bytes;
        return taken;
    }
    default:
        ec = channel_.finds().refusal_of(r);
        if (ec == channel_errc::no_such_region) ec = none;
        return {};
    }
}

bool region_allocations::is_own(std::shared_ptr<memory_core> const& what) const noexcept {
    return what != nullptr && &what->channel() == &channel_ && what->is_allocated();
}

void region_allocations::free(
    std::shared_ptr<memory_core> const& what, protocol::waiter<error_code> who
) {
    if (auto const ec = channel_.usable()) return channel_.deliver(std::move(who), ec);
    if (!is_own(what) || what->is_withdrawn() || is_freeing(what->number()))
        return channel_.deliver(std::move(who), channel_errc::no_such_allocation);
    std::uint64_t const number = what->number();
    channel_.finds().drop(number);
    freeing_.emplace(number, std::move(who));
    if (what->withdraw()) ask_to_free(number);
    else channel_.finds().drain(number);
}

void region_allocations::on_unused(std::uint64_t number) {
    if (is_freeing(number)) ask_to_free(number);
}

void region_allocations::ask_to_free(std::uint64_t number) {
    channel_.finds().forget(number);
    channel_.ask_peer(
        region_operation::free,
        wire::encode_number(number),
        [this, number](error_code ec, reply const& r) {
            error_code const result = result_of(ec, r);
            auto who = freeing_.extract(number);
            if (!who.empty()) channel_.deliver(std::move(who.mapped()), result);
        }
    );
}

void region_allocations::share(
    std::shared_ptr<memory_core> const& what,
    std::string const& name,
    protocol::waiter<error_code> who
) {
    bool const is_name =
        wire::is_region_name(std::string{remote_allocator::shared_prefix}.append(name));
    if (name.empty() || !is_name) return channel_.deliver(std::move(who), errc::invalid_option);
    if (auto const ec = channel_.usable()) return channel_.deliver(std::move(who), ec);
    if (!is_own(what)) return channel_.deliver(std::move(who), channel_errc::no_such_allocation);
    channel_.ask_peer(
        region_operation::share,
        wire::encode(wire::region_share{what->number(), name}),
        [this, w = std::move(who)](error_code ec, reply const& r) mutable {
            channel_.deliver(std::move(w), result_of(ec, r));
        }
    );
}

// Of an answer that says no more than `found`.
error_code region_allocations::result_of(error_code ec, reply const& r) {
    if (!ec && r.status() != static_cast<std::uint32_t>(region_status::found))
        ec = channel_.finds().refusal_of(r);
    if (ec == channel_errc::no_such_region) ec = channel_errc::no_such_allocation;
    if (ec == channel_errc::malformed_message) channel_.violated();
    return ec;
}

void region_allocations::end(error_code why) {
    for (auto& [number, who] : std::exchange(freeing_, {})) channel_.deliver(std::move(who), why);
}

}  // namespace rcverbs::detail
