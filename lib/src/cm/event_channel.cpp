#include "cm/event_channel.hpp"

#include "verbs/errno_map.hpp"

namespace rcverbs::cm {

boost::asio::execution_context::id event_channel::id;

event_channel::event_channel(boost::asio::execution_context& context)
    : boost::asio::execution_context::service{context},
      members_{boost::asio::use_service<hosting::members>(context)},
      descriptors_{boost::asio::use_service<progress::descriptor_set>(context)} {}

event_channel::~event_channel() = default;

void event_channel::shutdown() noexcept {
    members_.notify_all();
    std::lock_guard const lock{mutex_};
    is_shut_down_ = true;
    // The channel and the devices own the descriptors: release() ends the waits without closing
    // them.
    if (descriptor_ && descriptor_->is_open()) descriptor_->release();
    descriptor_.reset();
    for (auto& [device, d] : devices_) stop_watching(*d);
    devices_.clear();
    executor_ = {};
}

void event_channel::run_on(boost::asio::any_io_executor const& executor) {
    std::lock_guard const lock{mutex_};
    if (!executor_) executor_ = executor;
}

error_code event_channel::open() {
    if (channel_ != nullptr) return {};
    std::unique_ptr<rdma_event_channel, destroy_channel> made{rdma_create_event_channel()};
    error_code ec = verbs::or_unavailable(verbs::from_pointer(made.get()));
    if (ec) return ec;
    ec = verbs::set_non_blocking(made->fd);
    // Assigned last: an assigned descriptor would be closed a second time unless it is released.
    if (!ec) ec = descriptors_.add(made->fd);
    if (ec) return ec;
    if (!descriptor_) {
        try {
            descriptor_.emplace(executor_);
        } catch (boost::system::system_error const& e) {
            return e.code();  // no file descriptors left for the reactor
        }
    }
    descriptor_->assign(made->fd, ec);
    if (!ec) channel_ = std::move(made);
    return ec;
}

std::unique_ptr<cm::id> event_channel::make_id(error_code& ec) {
    std::lock_guard const lock{mutex_};
    ec = verbs::or_out_of_descriptors(open());
    if (ec) return nullptr;
    rdma_cm_id* raw = nullptr;
    ec = verbs::or_out_of_descriptors(
        verbs::from_minus_one(rdma_create_id(channel_.get(), &raw, nullptr, RDMA_PS_TCP))
    );
    if (ec) return nullptr;
    return adopt(raw);
}

// REQUIRES: mutex_ is held.
std::unique_ptr<cm::id> event_channel::adopt(rdma_cm_id* raw) {
    auto made = std::make_unique<cm::id>(*this, raw);
    raw->context = made.get();
    ++live_ids_;
    wait();
    return made;
}

void event_channel::destroy(cm::id& doomed) noexcept {
    std::lock_guard const lock{mutex_};
    static_cast<void>(rdma_destroy_id(doomed.raw_));
    forget_one();
}

// Destroying the last id cancels the waits, so that the context runs out of work.
// REQUIRES: mutex_ is held.
void event_channel::forget_one() noexcept {
    --live_ids_;
    if (live_ids_ > 0 || is_shut_down_) return;
    error_code ignored;
    if (is_waiting_) descriptor_->cancel(ignored);
    for (auto& [device, d] : devices_) {
        descriptors_.remove(d->watch->descriptor());
        if (d->is_waiting) d->descriptor.cancel(ignored);
    }
}

// rdma_migrate_id waits until the id's events are acknowledged. It does not block here, because
// every event is acknowledged as soon as it is taken. Source: rdma_migrate_id(3).
error_code event_channel::take_over(cm::id& from_elsewhere) {
    event_channel& before = *from_elsewhere.channel_;
    if (&before == this) return {};
    std::scoped_lock const lock{mutex_, before.mutex_};
    error_code ec = verbs::or_out_of_descriptors(open());
    if (!ec) ec = verbs::from_minus_one(rdma_migrate_id(from_elsewhere.raw_, channel_.get()));
    if (ec) return ec;
    from_elsewhere.channel_ = this;
    before.forget_one();
    ++live_ids_;
    // Events that migrated with the id do not wake a wait that is already pending here. Cancelling
    // the wait makes its handler read the channel.
    error_code ignored;
    if (is_waiting_) descriptor_->cancel(ignored);
    wait();
    return {};
}

void event_channel::set_sink(cm::id& owner, std::weak_ptr<event_sink> sink) {
    std::lock_guard const lock{mutex_};
    owner.sink_ = std::move(sink);
}

std::shared_ptr<verbs::domain> event_channel::shared_domain(
    verbs::device_context const& device, error_code& ec
) {
    std::lock_guard const lock{domains_mutex_};
    ec.clear();
    std::erase_if(domains_, [](auto const& each) { return each.second.expired(); });
    std::weak_ptr<verbs::domain>& known = domains_[device.get()];
    if (std::shared_ptr<verbs::domain> alive = known.lock()) return alive;
    verbs::device queried = verbs::device::query(device, ec);
    if (ec) return nullptr;
    std::shared_ptr<verbs::domain> made = verbs::domain::create(std::move(queried), ec);
    known = made;
    return made;
}

void event_channel::watch(
    verbs::device_context const& device, std::weak_ptr<device_event_sink> sink, error_code& ec
) {
    std::vector<std::shared_ptr<watched_device>> unused;  // destroyed without the lock
    std::shared_ptr<watched_device> watched;
    {
        std::lock_guard const lock{mutex_};
        unused.reserve(devices_.size());
        // So that devices that are removed and added again do not add up.
        std::erase_if(devices_, [&](auto const& each) {
            watched_device const& d = *each.second;
            bool const is_used = d.new_sinks > 0 || d.watch->has_sinks();
            if (is_used || each.first == device.get()) return false;
            stop_watching(*each.second);
            unused.push_back(each.second);
            return true;
        });
        watched = find_watched(device, ec);
        if (ec) return;
        ++watched->new_sinks;
    }
    auto const end = [&] {
        std::lock_guard const lock{mutex_};
        --watched->new_sinks;
        wait(watched);
    };
    try {
        // Events from before are none of the sink's.
        static_cast<void>(watched->watch->tell());
        watched->watch->add(std::move(sink));
    } catch (...) {
        end();
        throw;
    }
    end();
}

// REQUIRES: mutex_ is held.
std::shared_ptr<event_channel::watched_device> event_channel::find_watched(
    verbs::device_context const& device, error_code& ec
) {
    auto const known = devices_.find(device.get());
    if (known != devices_.end()) return known->second;
    std::shared_ptr<device_watch> events = device_watch::of(device, ec);
    if (ec) return nullptr;
    int const descriptor = events->descriptor();
    auto made = std::make_shared<watched_device>(executor_, std::move(events));
    devices_.emplace(device.get(), made);
    ec = descriptors_.add(descriptor);
    if (!ec) made->descriptor.assign(descriptor, ec);
    if (!ec) return made;
    stop_watching(*made);
    devices_.erase(device.get());
    return nullptr;
}

// The device owns the descriptor: it is not closed here.
void event_channel::stop_watching(watched_device& d) noexcept {
    descriptors_.remove(d.watch->descriptor());
    if (d.descriptor.is_open()) d.descriptor.release();
}

// REQUIRES: mutex_ is held.
void event_channel::wait(std::shared_ptr<watched_device> const& d) {
    if (d->is_waiting || is_shut_down_ || live_ids_ == 0 || !d->descriptor.is_open()) return;
    // It was added before, so this fails only if it has left since. The tick of the set then finds
    // its events.
    static_cast<void>(descriptors_.add(d->watch->descriptor()));
    d->descriptor.async_wait(
        boost::asio::posix::descriptor_base::wait_read,
        [this, d](error_code const&) {
            // As for the channel: read events even if the wait was cancelled.
            bool const goes_on = d->watch->tell();
            std::lock_guard const lock{mutex_};
            d->is_waiting = false;
            if (goes_on) return wait(d);
            stop_watching(*d);
            std::erase_if(devices_, [&](auto const& each) { return each.second == d; });
        }
    );
    d->is_waiting = true;
}

// REQUIRES: mutex_ is held.
void event_channel::wait() {
    for (auto& [device, d] : devices_) wait(d);
    if (is_waiting_ || is_shut_down_ || live_ids_ == 0) return;
    descriptor_->async_wait(
        boost::asio::posix::descriptor_base::wait_read,
        [this](error_code const&) {
            // A new id may have been added after the cancellation: read events, and wait again if
            // any id is alive.
            on_readable();
            std::lock_guard const lock{mutex_};
            is_waiting_ = false;
            wait();
        }
    );
    is_waiting_ = true;
}

void event_channel::on_readable() {
    event e;
    std::shared_ptr<event_sink> sink;
    while (take_event(e, sink)) {
        if (sink != nullptr) sink->on_event(e);
        e = {};
        sink.reset();
    }
}

bool event_channel::take_event(event& e, std::shared_ptr<event_sink>& sink) {
    std::lock_guard const lock{mutex_};
    if (is_shut_down_) return false;
    rdma_cm_event* taken = nullptr;
    if (rdma_get_cm_event(channel_.get(), &taken) != 0) return false;
    e.type = taken->event;
    e.status = taken->status;
    rdma_conn_param const& parameters = taken->param.conn;
    if (parameters.private_data != nullptr) {
        auto const* const first = static_cast<std::byte const*>(parameters.private_data);
        e.private_data.assign(first, first + parameters.private_data_len);
    }
    e.initiator_depth = parameters.initiator_depth;
    e.responder_resources = parameters.responder_resources;
    bool const is_request = taken->event == RDMA_CM_EVENT_CONNECT_REQUEST;
    rdma_cm_id* const raw = taken->id;
    rdma_cm_id* const target = is_request ? taken->listen_id : raw;
    sink = static_cast<cm::id*>(target->context)->sink_.lock();
    // Events are acknowledged only here. Their data is invalid afterwards.
    static_cast<void>(rdma_ack_cm_event(taken));
    if (is_request) e.incoming = adopt(raw);
    return true;
}

}  // namespace rcverbs::cm
