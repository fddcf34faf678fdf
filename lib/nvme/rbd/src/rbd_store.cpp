#include <rcverbs/nvme/rbd_store.hpp>

#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include <rcverbs/detail/option_check.hpp>

#include "error/detailed_error.hpp"
#include "rbd_image.hpp"
#include "store_delivery.hpp"
#include "store_job.hpp"
#include "store_schedule.hpp"
#include "store_uuid.hpp"

namespace rcverbs::nvme {

namespace detail {

namespace asio = boost::asio;

namespace {

using clock = std::chrono::steady_clock;

// Requests that librbd has at a time.
constexpr unsigned under_way_max = 128;
// Of these, pieces of what is zeroed.
constexpr unsigned long_max = 4;
constexpr std::uint64_t zero_piece_bytes = 32U << 20;
// How often a cluster that did not answer is asked.
constexpr std::chrono::seconds probe_pause{1};
// Until a gateway that was shut out opens the image again: what hosts sent before is given up by then.
constexpr std::chrono::seconds shut_out_pause{10};

error_code system_error_code(int number) noexcept {
    return {number, boost::system::system_category()};
}

}  // namespace

class rbd_core : public std::enable_shared_from_this<rbd_core> {
public:
    rbd_core(asio::any_io_executor on, std::string const& image, rbd_store_options options)
        : text_{image},
          name_{parse_rbd_name(image)},
          options_{std::move(options)},
          is_read_only_{options_.is_read_only || !name_.snapshot.empty()},
          events_{on},
          tick_{on} {}

    // What follows the constructor, as it needs a shared pointer.
    void open() {
        try {
            image_ = open_image();
        } catch (boost::system::system_error const& e) {
            throw rcverbs::detail::detailed_error{e.code(), text_ + ": " + e.what()};
        }
        features_ = image_->features();
        uuid_ = store_uuid("c0b3f0ab-4f0c-5f0e-8a53-6f0d0a6a4f1b", image_->identity());
        block_bytes_ = options_.block_bytes.value_or(features_.size_bytes % 4096 == 0 ? 4096 : 512);
        if (features_.size_bytes < block_bytes_)
            throw rcverbs::detail::detailed_error{
                system_error_code(ENOTSUP), text_ + ": the image is smaller than a block"};
        events_.assign(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        set_notification();
        keeper_ = std::thread{[this] { keep(); }};
        std::lock_guard const lock{mutex_};
        wait_for_events();
    }

    void close() {
        if (use_.begin_close()) {
            close_image();
            use_.end();
        }
        std::lock_guard const lock{mutex_};
        tick_.cancel();
        // The image has written events until now.
        events_.close();
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
            j.host = r.host_number();
            if (is_read_only_ && writes(r.operation())) {
                finish(j, system_error_code(EROFS));
            } else if (is_shut_out_) {
                give_up(j);
            } else {
                set_piece(j);
                waiting_.push(j);
                pump();
            }
            start_tick();
        }
        deliver();
    }

    store_geometry geometry() const {
        std::lock_guard const lock{mutex_};
        std::uint64_t const best = features_.optimal_bytes;
        bool const can_be_said = best % block_bytes_ == 0 && best / block_bytes_ <= 65536;
        return {
            features_.size_bytes / block_bytes_ * block_bytes_,
            block_bytes_,
            false,
            is_read_only_,
            can_be_said ? static_cast<std::uint32_t>(best) : 0};
    }

    std::array<std::byte, 16> const& uuid() const noexcept { return uuid_; }

    bool is_reached() const {
        std::lock_guard const lock{mutex_};
        return !is_away_;
    }

    rbd_statistics statistics() const {
        std::lock_guard const lock{mutex_};
        return counted_;
    }

private:
    struct job : scheduled<job>, store_job {
        using store_job::store_job;
        job* next = nullptr;
        std::list<job>::iterator place;
        bool is_under_way = false;
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;
    };

    std::unique_ptr<rbd_image> open_image() {
        rbd_access const access{options_.configuration, options_.keyring, options_.patience};
        return std::make_unique<rbd_image>(name_, access, options_.is_read_only, [this] {
            std::lock_guard const lock{mutex_};
            wants_size_ = true;
            changed_.notify_all();
        });
    }
    void set_notification() {
        ceph().rbd_set_image_notification(
            image_->get(), events_.native_handle(), EVENT_TYPE_EVENTFD
        );
    }

    // Any thread, once. Nothing of the store's executor, which may have ended.
    void close_image() {
        std::unique_ptr<rbd_image> image;
        {
            std::lock_guard const lock{mutex_};
            is_closing_ = true;
        }
        changed_.notify_all();
        // That thread may itself have ended the process, in a callback.
        if (keeper_.get_id() == std::this_thread::get_id()) keeper_.detach();
        else if (keeper_.joinable()) keeper_.join();
        {
            std::lock_guard const lock{mutex_};
            image = std::move(image_);
        }
    }

    // All below is used with the lock, if nothing else is said.

    // --- requests ---

    // What a request does next.
    static void set_piece(job& j) {
        store_request const& r = *j.request;
        j.offset = r.offset_bytes() + r.size_bytes() - j.left;
        j.is_long = r.operation() == store_operation::write_zeroes ||
                    r.operation() == store_operation::discard;
        j.bytes = j.is_long ? std::min(j.left, zero_piece_bytes) : j.left;
    }

    void pump() {
        while (!is_shut_out_ && !is_closing_ && under_way_ < under_way_max) {
            job* const j = waiting_.take();
            if (j == nullptr) return;
            if (int const result = begin(*j); result < 0) {
                waiting_.on_carried_out(*j);
                finish(*j, system_error_code(-result));
            } else {
                ++under_way_;
                j->is_under_way = true;
            }
        }
    }

    int begin(job& j) const {
        if (j.request->is_abandoned()) return -ECANCELED;
        ceph_functions const& f = ceph();
        rbd_completion_t done = nullptr;
        if (int const result = f.rbd_aio_create_completion(&j, nullptr, &done); result < 0)
            return result;
        int const result = call(f, image_->get(), j, done);
        if (result < 0) f.rbd_aio_release(done);
        return result;
    }
    static int call(ceph_functions const& f, rbd_image_t image, job& j, rbd_completion_t done) {
        auto const bytes = static_cast<std::size_t>(j.bytes);
        auto* const data = reinterpret_cast<char*>(j.request->data().data());
        switch (j.request->operation()) {
        case store_operation::read: return f.rbd_aio_read(image, j.offset, bytes, data, done);
        case store_operation::compare:
            return f.rbd_aio_read(
                image, j.offset, bytes, reinterpret_cast<char*>(j.there.data()), done
            );
        case store_operation::write: return f.rbd_aio_write(image, j.offset, bytes, data, done);
        case store_operation::flush: return f.rbd_aio_flush(image, done);
        case store_operation::write_zeroes:
        case store_operation::discard: break;
        }
        return f.rbd_aio_write_zeroes(image, j.offset, bytes, done, 0, 0);
    }

    void on_answered(job& j, std::int64_t result) {
        --under_way_;
        j.is_under_way = false;
        waiting_.on_carried_out(j);
        if (result < 0) return on_failed(j, static_cast<int>(-result));
        succeeded_ = clock::now();
        if (writes(j.request->operation())) wrote_ = succeeded_;
        if (is_away_ && !is_shut_out_) come_back();
        j.left -= j.bytes;
        if (j.left > 0) {
            j.since = clock::now();
            set_piece(j);
            return waiting_.push(j);
        }
        finish(j, {}, j.differs() ? store_outcome::differs : store_outcome::done);
    }
    void on_failed(job& j, int number) {
        switch (number) {
        case ESHUTDOWN:  // on the blocklist
            on_shut_out();
            return give_up(j);
        case ETIMEDOUT:
            if (succeeded_ < j.since) go_away(j.offset, "does not answer");
            return give_up(j);
        case EDQUOT: return finish(j, system_error_code(ENOSPC));
        default: return finish(j, system_error_code(number));
        }
    }

    void finish(job& j, error_code const& failure, store_outcome how = store_outcome::done) {
        delivery_.finish(*j.request, how, failure);
        jobs_.erase(j.place);
    }
    void give_up(job& j) {
        ++counted_.given_up;
        finish(j, {}, store_outcome::path_error);
    }

    // --- events of librbd ---

    void wait_for_events() {
        events_.async_wait(
            asio::posix::stream_descriptor::wait_read,
            [self = shared_from_this()](error_code const& ec) {
                if (!ec) self->on_events();
            }
        );
    }
    void on_events() {
        {
            std::lock_guard const lock{mutex_};
            if (is_closing_) return;
            std::uint64_t count = 0;
            // Nothing to read is no failure: it is asked anyway.
            static_cast<void>(::read(events_.native_handle(), &count, sizeof count) == 0);
            if (image_ != nullptr) take_answers();
            pump();
            if (under_way_ == 0) changed_.notify_all();
            wait_for_events();
        }
        deliver();
    }
    void take_answers() {
        ceph_functions const& f = ceph();
        std::array<rbd_completion_t, 32> done{};
        constexpr int most = static_cast<int>(done.size());
        for (int count = most; count == most;) {
            count = f.rbd_poll_io_events(image_->get(), done.data(), most);
            for (int i = 0; i < count; ++i) {
                rbd_completion_t const one = done.at(static_cast<std::size_t>(i));
                auto* const j = static_cast<job*>(f.rbd_aio_get_arg(one));
                std::int64_t const result = f.rbd_aio_get_return_value(one);
                f.rbd_aio_release(one);
                on_answered(*j, result);
            }
        }
    }

    // --- a cluster that does not answer ---

    void go_away(std::uint64_t offset, char const* what) {
        probe_offset_ = offset;
        if (std::exchange(is_away_, true)) return;
        say(std::string{"the Ceph cluster "} + what);
        delivery_.tell(options_.on_reached);
        next_look_ = clock::now() + probe_pause;
        changed_.notify_all();
    }
    void come_back() {
        is_away_ = false;
        say("the Ceph cluster answers again");
        delivery_.tell(options_.on_reached);
    }
    // Another gateway has taken the image over. Nothing of what hosts have sent until now may be carried out.
    void on_shut_out() {
        if (std::exchange(is_shut_out_, true)) return;
        go_away(0, "has shut this gateway out, as another one serves the image");
        next_look_ = clock::now() + shut_out_pause;
        while (job* const j = waiting_.remove()) give_up(*j);
        changed_.notify_all();
    }
    void say(std::string const& text) { delivery_.say(options_.on_event, text_ + ": " + text); }

    // --- the thread for what blocks ---

    void keep() {
        std::unique_lock lock{mutex_};
        while (!is_closing_) {
            if (std::exchange(wants_size_, false)) {
                read_size(lock);
            } else if (std::exchange(wants_lock_, false)) {
                take_lock(lock);
            } else if (!is_away_ || (is_shut_out_ && under_way_ > 0)) {
                changed_.wait(lock);
            } else if (next_look_ > clock::now()) {
                changed_.wait_until(lock, clock::time_point{next_look_});
            } else if (is_shut_out_) {
                reopen(lock);
            } else {
                probe(lock);
            }
        }
    }
    // Only this thread replaces the image, so that it may be used without the lock here.
    void read_size(std::unique_lock<std::mutex>& lock) {
        if (image_ == nullptr) return;
        lock.unlock();
        std::uint64_t const now = image_->size_bytes();
        lock.lock();
        if (now == 0 || now == features_.size_bytes) return;
        features_.size_bytes = now;
        delivery_.tell(options_.on_resized);
        deliver_without(lock);
    }
    void take_lock(std::unique_lock<std::mutex>& lock) {
        if (image_ == nullptr) return;
        lock.unlock();
        bool const has_shut_out = image_->shut_out_owner();
        lock.lock();
        if (!has_shut_out) return;
        say("another gateway had the lock of the image, did not answer, and is shut out");
        deliver_without(lock);
    }
    void probe(std::unique_lock<std::mutex>& lock) {
        std::uint64_t const offset = probe_offset_;
        lock.unlock();
        bool const answers = image_->answers(offset);
        lock.lock();
        next_look_ = clock::now() + probe_pause;
        if (!answers || !is_away_ || is_shut_out_) return;
        come_back();
        deliver_without(lock);
    }
    void reopen(std::unique_lock<std::mutex>& lock) {
        std::unique_ptr<rbd_image> image = std::move(image_);
        lock.unlock();
        image.reset();
        try {
            image = open_image();
        } catch (std::exception const&) {
            // It is tried again.
        }
        lock.lock();
        next_look_ = clock::now() + probe_pause;
        if (image == nullptr) return;
        image_ = std::move(image);
        set_notification();
        ++counted_.reopened;
        is_shut_out_ = false;
        wants_size_ = true;
        come_back();
        deliver_without(lock);
    }

    // --- time ---

    void start_tick() {
        if (is_ticking_ || jobs_.empty() || is_closing_) return;
        is_ticking_ = true;
        tick_.expires_after(std::chrono::seconds{1});
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
            for (job const& j : jobs_) {
                if (!j.is_under_way) continue;
                auto const age = now - j.since;
                bool const is_write = writes(j.request->operation());
                if (is_write && wrote_ < j.since && age > options_.shut_out_after)
                    wants_lock_ = true;
                // librbd ends what it has by itself, except what waits for a lock.
                if (succeeded_ < j.since && age > options_.patience + std::chrono::seconds{2})
                    go_away(j.offset, "does not answer");
            }
            if (wants_lock_) changed_.notify_all();
            end_late(now);
            pump();
            start_tick();
        }
        deliver();
    }
    void end_late(clock::time_point now) {
        std::vector<job*> stay;
        while (job* const j = waiting_.remove()) {
            if (j->request->is_abandoned()) finish(*j, asio::error::operation_aborted);
            else if (j->since + options_.patience <= now) give_up(*j);
            else stay.push_back(j);
        }
        for (job* const j : stay) waiting_.push(*j);
    }

    // Without the lock.
    void deliver() { delivery_.deliver(mutex_); }
    void deliver_without(std::unique_lock<std::mutex>& lock) {
        lock.unlock();
        deliver();
        lock.lock();
    }

    std::string const text_;
    rbd_name const name_;
    rbd_store_options const options_;
    bool const is_read_only_;
    std::uint32_t block_bytes_ = 0;
    std::array<std::byte, 16> uuid_{};

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    bool is_closing_ = false;
    std::thread keeper_;
    asio::posix::stream_descriptor events_;
    asio::steady_timer tick_;
    bool is_ticking_ = false;
    std::unique_ptr<rbd_image> image_;
    rbd_features features_;
    store_schedule<job> waiting_{long_max};
    std::list<job> jobs_;
    unsigned under_way_ = 0;
    // The last request, and the last write, that succeeded.
    clock::time_point succeeded_;
    clock::time_point wrote_;
    bool wants_size_ = false;
    bool wants_lock_ = false;
    bool is_away_ = false;
    bool is_shut_out_ = false;
    clock::time_point next_look_;
    std::uint64_t probe_offset_ = 0;
    store_delivery delivery_;
    rbd_statistics counted_;
    // Last, as the end of the process may use all of it.
    ceph_use use_{[this] { close_image(); }};
};

}  // namespace detail

rbd_store::rbd_store(
    boost::asio::any_io_executor on, std::string const& image, rbd_store_options const& options
)
    : core_{[&] {
          rcverbs::detail::option_check check{"rbd_store_options"};
          std::uint32_t const block = options.block_bytes.value_or(4096);
          check.within("block_bytes", block, 512, 4096)
              .that(std::has_single_bit(block), "block_bytes", "is no power of two")
              .from("patience", options.patience, std::chrono::seconds{1})
              .from("shut_out_after", options.shut_out_after, std::chrono::seconds{1});
          rcverbs::detail::throw_if_refused(check.problem());
          auto made = std::make_shared<detail::rbd_core>(std::move(on), image, options);
          made->open();
          return made;
      }()} {}

rbd_store::~rbd_store() { core_->close(); }

store_geometry rbd_store::geometry() const { return core_->geometry(); }

std::optional<std::array<std::byte, 16>> rbd_store::uuid() const { return core_->uuid(); }

void rbd_store::start(store_request& request) { core_->start(request); }

bool rbd_store::is_reached() const { return core_->is_reached(); }

rbd_statistics rbd_store::statistics() const { return core_->statistics(); }

}  // namespace rcverbs::nvme
