#include <rcverbs/nvme/nbd_store.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <rcverbs/detail/option_check.hpp>
#include <rcverbs/nvme/target.hpp>

#include "error/detailed_error.hpp"
#include "nbd_connection.hpp"
#include "nbd_schedule.hpp"
#include "store_delivery.hpp"
#include "store_job.hpp"
#include "store_uuid.hpp"

namespace rcverbs::nvme {

namespace detail {

namespace asio = boost::asio;

namespace {

using clock = std::chrono::steady_clock;

// Requests that one connection has at a time.
constexpr unsigned under_way_max = 32;
// A piece of what a server zeroes by itself, so that a large one leaves room for other requests.
constexpr std::uint64_t zero_piece_bytes = 32U << 20;
constexpr std::chrono::milliseconds retry_min{100};
constexpr std::chrono::milliseconds retry_max{1000};
constexpr std::chrono::milliseconds retry_beside_others{30'000};

error_code system_error_code(int number) noexcept {
    return {number, boost::system::system_category()};
}

[[noreturn]] void refuse(int number, std::string text) {
    throw rcverbs::detail::detailed_error{system_error_code(number), std::move(text)};
}

}  // namespace

class nbd_core : public std::enable_shared_from_this<nbd_core> {
public:
    nbd_core(asio::any_io_executor on, std::string uri, nbd_store_options options)
        : on_{std::move(on)},
          uri_{std::move(uri)},
          options_{std::move(options)},
          tick_{on_} {}

    // What follows the constructor, as it needs a shared pointer.
    void open() {
        nbd_connection first = connect_first();
        nbd_features const f = features_of(first.get());
        check(f);
        unsigned const count = f.can_have_several ? options_.connections : 1;
        schedule_.emplace(count, under_way_max);
        links_.reserve(count);
        for (unsigned i = 0; i < count; ++i) links_.emplace_back(on_);
        std::lock_guard const lock{mutex_};
        attach(0, std::move(first), f);
        connector_ = std::thread{[this] { keep_connected(); }};
    }

    void close() {
        {
            std::lock_guard const lock{mutex_};
            is_closing_ = true;
            for (link& each : links_) detach(each);
            tick_.cancel();
        }
        changed_.notify_all();
        if (connector_.joinable()) connector_.join();
    }

    void start(store_request& r) {
        auto const self = shared_from_this();
        std::list<job> made = new_job<job>(r);
        if (made.empty()) return;
        {
            std::lock_guard const lock{mutex_};
            jobs_.splice(jobs_.end(), made);
            job& j = jobs_.back();
            j.place = std::prev(jobs_.end());
            j.core = this;
            j.host = r.host_number();
            if (std::optional<error_code> const now = result_without_server(r)) {
                finish(j, store_outcome::done, *now);
            } else {
                set_piece(j);
                schedule_->add(j);
                pump();
            }
            start_tick();
        }
        deliver();
    }

    store_geometry geometry() const {
        std::lock_guard const lock{mutex_};
        bool const is_cached = features_.can_flush && !writes_through();
        return {
            features_.size_bytes / block_bytes_ * block_bytes_,
            block_bytes_,
            is_cached,
            options_.is_read_only || features_.is_read_only};
    }

    std::array<std::byte, 16> uuid() const {
        std::string text = plain_nbd_uri(uri_);
        if (is_on_this_machine(text)) text += ' ' + machine_nqn();
        return store_uuid("5b9c7a51-6d07-5a28-9f5e-3f1d7b0c2a44", text);
    }

    bool is_reached() const {
        std::lock_guard const lock{mutex_};
        return !is_away_;
    }
    bool has_lost_writes() const {
        std::lock_guard const lock{mutex_};
        return schedule_->has_lost_writes();
    }

    nbd_statistics statistics() const {
        std::lock_guard const lock{mutex_};
        return counted_;
    }

private:
    struct job : nbd_request, store_job {
        using store_job::store_job;
        nbd_core* core = nullptr;
        std::list<job>::iterator place;
        bool is_flushing = false;  // what was written
    };
    struct link {
        explicit link(asio::any_io_executor const& on) : socket{on} {}
        nbd_connection handle;
        asio::posix::stream_descriptor socket;
        // Of what waits for the socket: an earlier connection's does nothing.
        std::uint64_t number = 0;
        bool waits_to_read = false;
        bool waits_to_write = false;
        clock::time_point due;  // while it is closed
        clock::time_point heard;  // when its server last sent anything
        std::chrono::milliseconds pause{retry_min};
    };
    struct answer {
        job* of = nullptr;
        int error = 0;
    };

    nbd_connection connect_first() const {
        try {
            return connect_nbd(uri_, clock::now() + options_.patience, is_closing_);
        } catch (boost::system::system_error const& e) {
            throw rcverbs::detail::detailed_error{e.code(), uri_ + ": " + e.what()};
        }
    }

    void check(nbd_features const& f) {
        if (f.block_bytes_min > 4096)
            refuse(
                ENOTSUP,
                "the server has blocks of " + std::to_string(f.block_bytes_min) +
                    " bytes, more than 4096"
            );
        std::uint32_t const least = std::max(std::bit_ceil(f.block_bytes_min), 512U);
        block_bytes_ = options_.block_bytes.value_or(least);
        if (block_bytes_ < least)
            refuse(
                ENOTSUP, "the server has no blocks of less than " + std::to_string(least) + " bytes"
            );
        if (f.size_bytes < block_bytes_) refuse(ENOTSUP, "the export is smaller than a block");
        if (options_.writes_through && f.can_flush && !f.can_write_durably)
            refuse(ENOTSUP, "the server has no durable writes (NBD_CMD_FLAG_FUA)");
    }

    // All below is used with the lock.

    bool writes_through() const noexcept {
        return options_.writes_through && features_.can_write_durably;
    }
    bool can_write() const noexcept { return !options_.is_read_only && !features_.is_read_only; }

    std::optional<error_code> result_without_server(store_request const& r) const {
        bool const is_flush = r.operation() == store_operation::flush;
        bool const reads =
            r.operation() == store_operation::read || r.operation() == store_operation::compare;
        if (!is_flush && !reads && !can_write()) return system_error_code(EROFS);
        // A server without it keeps no cache, as far as it says.
        if (is_flush && (!features_.can_flush || options_.is_read_only)) return error_code{};
        return {};
    }

    // What a request sends next.
    void set_piece(job& j) {
        store_request const& r = *j.request;
        j.offset = r.offset_bytes() + r.size_bytes() - j.left;
        j.bytes = j.left;
        j.is_long = false;
        switch (r.operation()) {
        case store_operation::read:
        case store_operation::compare: j.kind = nbd_kind::read; break;
        case store_operation::flush: j.kind = nbd_kind::flush; break;
        case store_operation::write: j.kind = kind_of_write(r); break;
        case store_operation::write_zeroes:
        case store_operation::discard:
            j.kind = kind_of_write(r);
            j.is_long = true;
            j.bytes = features_.can_zero ? std::min(j.left, zero_piece_bytes)
                                         : piece_bytes(j.offset, j.left);
            break;
        }
        if (!j.is_long) j.bytes = std::min<std::uint64_t>(j.bytes, features_.transfer_bytes_max);
    }
    // A server without flush keeps no cache, as far as it says.
    nbd_kind kind_of_write(store_request const& r) const noexcept {
        bool const is_durable = (r.is_durable() || writes_through()) && features_.can_write_durably;
        return is_durable || !features_.can_flush ? nbd_kind::durable_write : nbd_kind::write;
    }
    // Of a server that can flush, and nothing else.
    bool must_flush(job const& j) const noexcept {
        return j.request->is_durable() && j.kind == nbd_kind::write;
    }

    void pump() {
        for (bool has_sent = true; has_sent;) {
            has_sent = false;
            for (unsigned i = 0; i < links_.size(); ++i) {
                auto* const r = static_cast<job*>(schedule_->take(i));
                if (r == nullptr) continue;
                has_sent = true;
                send(i, *r);
            }
        }
    }

    void send(unsigned i, job& j) {
        if (j.request->is_abandoned()) return drop(j, asio::error::operation_aborted);
        bool const is_promise = j.kind == nbd_kind::flush || j.kind == nbd_kind::durable_write;
        if (is_promise && schedule_->has_lost_writes()) return drop(j, system_error_code(EIO));
        std::int64_t const cookie = call(links_[i].handle.get(), j);
        int const number = cookie < 0 ? ::nbd_get_errno() : 0;
        if (is_lost(i)) return lose(i, "it closed the connection");
        if (cookie < 0) return drop(j, system_error_code(number != 0 ? number : EIO));
        take_answers(i);
        arm(i);
    }

    static int on_answer(void* of, int* error) {
        auto* const j = static_cast<job*>(of);
        j->core->answers_.push_back({j, *error});
        return 1;  // libnbd forgets it
    }

    // The first error is that of the call: the answer comes to on_answer().
    static std::int64_t call(nbd_handle* h, job& j) {
        nbd_completion_callback const done{&nbd_core::on_answer, &j, nullptr};
        store_request const& r = *j.request;
        if (j.kind == nbd_kind::flush) return ::nbd_aio_flush(h, done, 0);
        bool const is_durable = j.kind == nbd_kind::durable_write;
        bool const can = j.core->features_.can_write_durably;
        std::uint32_t const durable = is_durable && can ? LIBNBD_CMD_FLAG_FUA : 0U;
        auto const bytes = static_cast<std::size_t>(j.bytes);
        auto const at = static_cast<std::size_t>(j.offset - r.offset_bytes());
        switch (r.operation()) {
        case store_operation::read:
            return ::nbd_aio_pread(h, r.data().data() + at, bytes, j.offset, done, 0);
        case store_operation::compare:
            return ::nbd_aio_pread(h, j.there.data() + at, bytes, j.offset, done, 0);
        case store_operation::write:
            return ::nbd_aio_pwrite(h, r.data().data() + at, bytes, j.offset, done, durable);
        case store_operation::flush:
        case store_operation::write_zeroes:
        case store_operation::discard: break;
        }
        if (!j.core->features_.can_zero)
            return ::nbd_aio_pwrite(h, zeros().data(), bytes, j.offset, done, durable);
        bool const keeps = r.operation() == store_operation::write_zeroes;
        return ::nbd_aio_zero(
            h, j.bytes, j.offset, done, durable | (keeps ? LIBNBD_CMD_FLAG_NO_HOLE : 0U)
        );
    }
    static std::vector<std::byte> const& zeros() {
        static std::vector<std::byte> const all(long_piece_bytes);
        return all;
    }

    // What libnbd's calls have taken from a connection.
    void take_answers(unsigned i) {
        for (answer const& each : std::exchange(answers_, {})) on_answered(i, each);
    }

    void on_answered(unsigned i, answer const& a) {
        job& j = *a.of;
        // A server that ends: it is repeated.
        if (a.error == ESHUTDOWN) {
            must_lose_ = true;
            return;
        }
        links_[i].pause = retry_min;
        schedule_->on_answered(j, a.error == 0);
        if (a.error != 0) return finish(j, store_outcome::done, system_error_code(a.error));
        if (!j.is_flushing) j.left -= j.bytes;
        bool const goes_on = j.left > 0;
        if (goes_on || must_flush(j)) {
            j.since = clock::now();
            if (goes_on) set_piece(j);
            else to_flush(j);
            return schedule_->add(j);
        }
        finish(j, j.differs() ? store_outcome::differs : store_outcome::done, {});
    }

    static void to_flush(job& j) noexcept {
        j.is_flushing = true;
        j.kind = nbd_kind::flush;
        j.bytes = 0;
        j.is_long = false;
    }

    // Of a request that has been taken for a connection, and is not sent.
    void drop(job& j, error_code const& why) {
        schedule_->on_dropped(j);
        finish(j, store_outcome::done, why);
    }
    void finish(job& j, store_outcome how, error_code const& failure) {
        delivery_.finish(*j.request, how, failure);
        jobs_.erase(j.place);
    }

    // --- connections ---

    bool is_lost(unsigned i) {
        nbd_handle* const h = links_[i].handle.get();
        return std::exchange(must_lose_, false) || ::nbd_aio_is_dead(h) == 1 ||
               ::nbd_aio_is_closed(h) == 1;
    }

    void attach(unsigned i, nbd_connection made, nbd_features const& f) {
        link& l = links_[i];
        l.handle = std::move(made);
        ++l.number;
        l.heard = clock::now();
        l.due = l.heard + retry_min;
        l.waits_to_read = l.waits_to_write = false;
        error_code ec;
        // A descriptor of its own, because libnbd closes its one as soon as the connection has ended: the number
        // could be another's before this one leaves the epoll set.
        int const own = ::fcntl(::nbd_aio_get_fd(l.handle.get()), F_DUPFD_CLOEXEC, 0);
        if (own < 0) return l.handle.reset();
        l.socket.assign(own, ec);
        if (ec) {
            ::close(own);
            return l.handle.reset();
        }
        bool const is_resized = features_.size_bytes != 0 && f.size_bytes != features_.size_bytes;
        features_ = f;
        schedule_->on_open(i);
        if (std::exchange(is_away_, false)) {
            say("the NBD server " + uri_ + " is back");
            note_reached();
        }
        if (is_resized) delivery_.tell(options_.on_resized);
        pump();
        arm(i);
    }

    void detach(link& l) {
        ++l.number;
        error_code ignored;
        l.socket.close(ignored);
        l.handle.reset();
        // What it called in the end is repeated.
        answers_.clear();
    }

    void lose(unsigned i, std::string const& why) {
        detach(links_[i]);
        ++counted_.connections_lost;
        counted_.repeated += schedule_->under_way(i).size();
        bool const had_lost_writes = schedule_->has_lost_writes();
        schedule_->on_lost(i);
        bool const is_last =
            std::ranges::none_of(links_, [](link const& each) { return each.handle != nullptr; });
        if (is_last && !std::exchange(is_away_, true)) {
            say("the NBD server " + uri_ + " is away: " + why);
            note_reached();
        }
        if (schedule_->has_lost_writes() && !had_lost_writes)
            say("writes to " + uri_ +
                " that were completed and not flushed may be lost with the server: flushes fail "
                "from now on, until the store is opened again");
        links_[i].due = clock::now() + (is_last ? retry_min : links_[i].pause);
        changed_.notify_all();
    }

    void arm(unsigned i) {
        link& l = links_[i];
        if (l.handle == nullptr) return;
        unsigned const wanted = ::nbd_aio_get_direction(l.handle.get());
        if ((wanted & LIBNBD_AIO_DIRECTION_READ) != 0 && !std::exchange(l.waits_to_read, true))
            wait(i, true);
        if ((wanted & LIBNBD_AIO_DIRECTION_WRITE) != 0 && !std::exchange(l.waits_to_write, true))
            wait(i, false);
    }
    void wait(unsigned i, bool is_read) {
        using socket = asio::posix::stream_descriptor;
        links_[i].socket.async_wait(
            is_read ? socket::wait_read : socket::wait_write,
            [self = shared_from_this(), i, is_read, number = links_[i].number](error_code const&) {
                self->on_socket(i, is_read, number);
            }
        );
    }
    void on_socket(unsigned i, bool is_read, std::uint64_t number) {
        {
            std::lock_guard const lock{mutex_};
            link& l = links_[i];
            if (l.number != number || l.handle == nullptr) return;
            (is_read ? l.waits_to_read : l.waits_to_write) = false;
            if (is_read) l.heard = clock::now();
            nbd_handle* const h = l.handle.get();
            unsigned const wanted = ::nbd_aio_get_direction(h);
            if (is_read && (wanted & LIBNBD_AIO_DIRECTION_READ) != 0) ::nbd_aio_notify_read(h);
            if (!is_read && (wanted & LIBNBD_AIO_DIRECTION_WRITE) != 0) ::nbd_aio_notify_write(h);
            // Of a connection that has ended, answers are errors of libnbd's own.
            bool const is_over = ::nbd_aio_is_dead(h) == 1 || ::nbd_aio_is_closed(h) == 1;
            if (is_over) std::erase_if(answers_, [](answer const& a) { return a.error != 0; });
            take_answers(i);
            if (is_lost(i)) lose(i, "it closed the connection");
            pump();
            arm(i);
        }
        deliver();
    }

    // The thread that connects.
    void keep_connected() {
        std::unique_lock lock{mutex_};
        while (!is_closing_) {
            link* next = nullptr;
            for (link& each : links_) {
                if (each.handle != nullptr) continue;
                if (next == nullptr || each.due < next->due) next = &each;
            }
            if (next == nullptr) {
                changed_.wait(lock);
                continue;
            }
            if (next->due > clock::now()) {
                changed_.wait_until(lock, clock::time_point{next->due});
                continue;
            }
            auto const i = static_cast<unsigned>(next - links_.data());
            lock.unlock();
            nbd_connection made;
            std::string why;
            nbd_features f;
            try {
                made = connect_nbd(uri_, clock::now() + options_.patience, is_closing_);
                f = features_of(made.get());
            } catch (std::exception const& e) {
                why = e.what();
            }
            lock.lock();
            if (is_closing_) return;
            bool const is_same = made != nullptr && f.block_bytes_min <= block_bytes_ &&
                                 (f.can_write_durably || !writes_through());
            if (is_same) {
                attach(i, std::move(made), f);
                lock.unlock();
                deliver();
                lock.lock();
                continue;
            }
            link& l = links_[i];
            l.pause = std::min(l.pause * 2, is_away_ ? retry_max : retry_beside_others);
            l.due = clock::now() + l.pause;
        }
    }

    // --- time ---

    void start_tick() {
        if (is_ticking_ || jobs_.empty() || is_closing_) return;
        is_ticking_ = true;
        constexpr std::chrono::milliseconds longest{1000};
        auto const step = std::clamp<std::chrono::milliseconds>(
            options_.patience / 8, std::chrono::milliseconds{1}, longest
        );
        tick_.expires_after(step);
        tick_.async_wait([self = shared_from_this()](error_code const& ec) {
            if (!ec) self->on_tick();
        });
    }
    void on_tick() {
        {
            std::lock_guard const lock{mutex_};
            is_ticking_ = false;
            if (is_closing_) return;
            auto const now = clock::now();
            auto const is_late = [&](job const& j) { return j.since + options_.patience <= now; };
            lose_silent(is_late, now - options_.patience);
            bool const has_late = std::ranges::any_of(jobs_, [&](job const& j) {
                return is_late(j) || j.request->is_abandoned();
            });
            if (has_late) end_late(is_late);
            pump();
            start_tick();
        }
        deliver();
    }
    // With a connection that does not answer, those on which nothing came meanwhile are lost, too: a server that hangs would else be
    // away only after each of them had cost a request its patience.
    template <class IsLate>
    void lose_silent(IsLate const& is_late, clock::time_point since) {
        bool has_silent = false;
        for (unsigned i = 0; i < links_.size(); ++i) {
            bool const is_silent =
                std::ranges::any_of(schedule_->under_way(i), [&](nbd_request const* r) {
                    return is_late(*static_cast<job const*>(r));
                });
            if (!is_silent) continue;
            lose(i, "it does not answer");
            has_silent = true;
        }
        if (!has_silent) return;
        for (unsigned i = 0; i < links_.size(); ++i) {
            if (links_[i].handle != nullptr && links_[i].heard <= since)
                lose(i, "it does not answer");
        }
    }
    template <class IsLate>
    void end_late(IsLate const& is_late) {
        auto const removed = schedule_->remove_waiting([&](nbd_request const& r) {
            auto const& j = static_cast<job const&>(r);
            return is_late(j) || j.request->is_abandoned();
        });
        for (nbd_request* const r : removed) {
            auto& j = *static_cast<job*>(r);
            if (j.request->is_abandoned()) {
                finish(j, store_outcome::done, asio::error::operation_aborted);
            } else {
                ++counted_.given_up;
                finish(j, store_outcome::path_error, {});
            }
        }
    }

    void say(std::string text) { delivery_.say(options_.on_event, std::move(text)); }

    void note_reached() { delivery_.tell(options_.on_reached); }

    void deliver() { delivery_.deliver(mutex_); }

    asio::any_io_executor const on_;
    std::string const uri_;
    nbd_store_options const options_;
    std::uint32_t block_bytes_ = 0;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<bool> is_closing_{false};
    std::thread connector_;
    asio::steady_timer tick_;
    bool is_ticking_ = false;
    nbd_features features_;
    std::optional<nbd_schedule> schedule_;
    std::vector<link> links_;
    bool is_away_ = false;
    bool must_lose_ = false;
    std::list<job> jobs_;
    // Of libnbd's calls, until take_answers().
    std::vector<answer> answers_;
    store_delivery delivery_;
    nbd_statistics counted_;
};

}  // namespace detail

nbd_store::nbd_store(
    boost::asio::any_io_executor on, std::string uri, nbd_store_options const& options
)
    : core_{[&] {
          rcverbs::detail::option_check check{"nbd_store_options"};
          std::uint32_t const block = options.block_bytes.value_or(4096);
          check.within("connections", options.connections, 1, 16)
              .within("block_bytes", block, 512, 4096)
              .that(std::has_single_bit(block), "block_bytes", "is no power of two")
              .from("patience", options.patience, std::chrono::milliseconds{1});
          rcverbs::detail::throw_if_refused(check.problem());
          auto made = std::make_shared<detail::nbd_core>(std::move(on), std::move(uri), options);
          made->open();
          return made;
      }()} {}

nbd_store::~nbd_store() { core_->close(); }

store_geometry nbd_store::geometry() const { return core_->geometry(); }

std::optional<std::array<std::byte, 16>> nbd_store::uuid() const { return core_->uuid(); }

void nbd_store::start(store_request& request) { core_->start(request); }

bool nbd_store::is_reached() const { return core_->is_reached(); }

bool nbd_store::has_lost_writes() const { return core_->has_lost_writes(); }

nbd_statistics nbd_store::statistics() const { return core_->statistics(); }

}  // namespace rcverbs::nvme
