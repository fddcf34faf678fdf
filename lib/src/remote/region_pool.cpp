#include "remote/region_pool.hpp"

#include <cerrno>
#include <new>
#include <utility>

#include "remote/region_bodies.hpp"
#include "remote/region_core.hpp"

namespace rcverbs::detail {

using wire::region_status;

pool_core* region_pool::open() {
    if (pool_ == nullptr) pool_ = channel_.grants().pool();
    if (pool_ != nullptr && lease_ == nullptr) lease_ = pool_->open(channel_.self());
    return pool_.get();
}

void region_pool::on_allocate(request r) {
    error_code ec;
    auto const asked = wire::decode_allocate(r.bytes(), ec);
    if (ec) return channel_.violated();
    if (asked.version != wire::region_version)
        return channel_.answer(std::move(r), region_status::other_version);
    int why = 0;
    pool_core::allocated a;
    try {
        if (pool_core* const p = open(); p == nullptr) a = {};
        else if (!p->is_possible(asked.alignment)) why = EINVAL;
        else a = p->allocate(*lease_, asked.bytes, asked.alignment, asked.is_kept);
    } catch (std::bad_alloc const&) {
        why = ENOMEM;
    } catch (boost::system::system_error const& e) {
        why = errno_of(e.code());
    }
    if (why != 0) return channel_.grants().refuse(std::move(r), {why, {}});
    answer(std::move(r), a, true);
}

void region_pool::on_resume(request r) {
    error_code ec;
    auto const asked = wire::decode_resume(r.bytes(), ec);
    if (ec) return channel_.violated();
    if (asked.version != wire::region_version)
        return channel_.answer(std::move(r), region_status::other_version);
    pool_core* const p = open();
    if (p == nullptr) return channel_.answer(std::move(r), region_status::none);
    // It is answered when those who had the memory before cannot access it any more.
    struct resumption {
        request asked;
        pool_core::allocated what;
    };
    auto const resumed = std::make_shared<resumption>();
    auto then = [this, self = channel_.self(), resumed]() noexcept {
        try {
            self->in_order([this, self, resumed] {
                on_resumed(std::move(resumed->asked), resumed->what);
            });
        } catch (...) {
            self->close();  // without memory the peer would wait for ever
        }
    };
    // Inside, so that `then` does its work later.
    resumed->what = p->resume(*lease_, asked.token, then);
    if (resumed->what.what != pool_core::outcome::done)
        return answer(std::move(r), resumed->what, false);
    resumed->asked = std::move(r);
}

void region_pool::on_resumed(request r, pool_core::allocated const& a) {
    if (channel_.has_ended()) return;
    // Another connection may have taken it meanwhile.
    if (!pool_->holds(*lease_, a.block->number))
        return channel_.answer(std::move(r), region_status::none);
    answer(std::move(r), a, false);
}

void region_pool::answer(request r, pool_core::allocated const& a, bool is_new) {
    bool const is_exhausted = a.what == pool_core::outcome::exhausted;
    switch (a.what) {
    case pool_core::outcome::unknown: return channel_.answer(std::move(r), region_status::none);
    case pool_core::outcome::over_quota:
    case pool_core::outcome::exhausted:
        return channel_.answer(
            std::move(r),
            is_exhausted ? region_status::exhausted : region_status::over_quota,
            as_vector(wire::encode(wire::region_left{a.bytes_left, a.largest_bytes}))
        );
    case pool_core::outcome::done: break;
    }
    wire::region_allocated message{a.bytes_left, a.key, {}};
    auto const refused =
        channel_.grants().grant_once(a.block, wire::allocated_head_bytes, message.memory);
    if (refused.why == 0)
        return channel_.answer(std::move(r), region_status::found, wire::encode(message));
    if (is_new) static_cast<void>(pool_->free(*lease_, a.block->number, {}));
    channel_.grants().refuse(std::move(r), refused);
}

void region_pool::on_free(request r) {
    error_code ec;
    std::uint64_t const number = wire::decode_number(r.bytes(), ec);
    if (ec) return channel_.violated();
    pool_core* const p = open();
    auto then = [this, weak = std::weak_ptr{channel_.self()}, number] {
        auto const self = weak.lock();
        if (self != nullptr) self->in_order([this, self, number] { on_freed(number); });
    };
    if (p == nullptr || !p->free(*lease_, number, then))
        return channel_.answer(std::move(r), region_status::none);
    to_be_freed_.emplace(number, std::move(r));
    // Whatever it has found of this number, it does not use any more.
    channel_.grants().end(number);
}

void region_pool::on_freed(std::uint64_t number) {
    auto freed = to_be_freed_.extract(number);
    if (!freed.empty()) channel_.answer(std::move(freed.mapped()), region_status::found);
}

void region_pool::on_share(request r) {
    error_code ec;
    auto const asked = wire::decode_share(r.bytes(), ec);
    std::string const name = std::string{remote_allocator::shared_prefix}.append(asked.name);
    if (ec || !wire::is_region_name(name)) return channel_.violated();
    pool_core* const p = open();
    switch (p != nullptr ? p->share(*lease_, asked.number, name) : pool_core::outcome::unknown) {
    case pool_core::outcome::done: return channel_.answer(std::move(r), region_status::found);
    case pool_core::outcome::unknown: return channel_.answer(std::move(r), region_status::none);
    case pool_core::outcome::over_quota:
    case pool_core::outcome::exhausted: break;
    }
    channel_.grants().refuse(std::move(r), {EEXIST, {}});
}

}  // namespace rcverbs::detail
