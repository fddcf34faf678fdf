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
    for (auto& [device, d] : devices_) {
        if (d.descriptor.is_open()) d.descriptor.release();
    }
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
    error_code ec = verbs::from_pointer(made.get());
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
        if (d.is_waiting) d.descriptor.cancel(ignored);
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

std::shared_ptr<verbs::domain> event_channel::shared_domain(ibv_context* device, error_code& ec) {
    std::lock_guard const lock{domains_mutex_};
    ec.clear();
    std::weak_ptr<verbs::domain>& known = domains_[device];
    if (std::shared_ptr<verbs::domain> alive = known.lock()) return alive;
    verbs::device borrowed = verbs::device::borrow(device, ec);
    if (ec) return nullptr;
    std::shared_ptr<verbs::domain> made = verbs::domain::create(std::move(borrowed), ec);
    known = made;
    return made;
}

ibv_context* event_channel::find_device(std::string const& name, error_code& ec) {
    int count = 0;
    // The devices stay open when the list is freed. Source: rdma_get_devices(3).
    ibv_context** const list = rdma_get_devices(&count);
    ec = verbs::from_pointer(list);
    if (ec) return nullptr;
    ibv_context* found = nullptr;
    for (int i = 0; i < count; ++i) {
        if (name == ibv_get_device_name(list[i]->device)) found = list[i];
    }
    rdma_free_devices(list);
    if (found == nullptr) ec = errc::no_rdma_device;
    return found;
}

void event_channel::watch(
    ibv_context* device, std::weak_ptr<device_event_sink> sink, error_code& ec
) {
    std::lock_guard const lock{mutex_};
    auto found = devices_.find(device);
    if (found == devices_.end()) {
        std::shared_ptr<device_watch> watch = device_watch::of(device, ec);
        if (ec) return;
        found = devices_.try_emplace(device, executor_, std::move(watch)).first;
        watched_device& made = found->second;
        ec = descriptors_.add(made.watch->descriptor());
        if (!ec) made.descriptor.assign(made.watch->descriptor(), ec);
        if (ec) {
            devices_.erase(found);
            return;
        }
    }
    found->second.watch->add(std::move(sink));
    wait(found->second);
}

// REQUIRES: mutex_ is held.
void event_channel::wait(watched_device& d) {
    if (d.is_waiting || is_shut_down_ || live_ids_ == 0) return;
    d.is_waiting = true;
    d.descriptor.async_wait(
        boost::asio::posix::descriptor_base::wait_read,
        [this, &d](error_code const&) {
            // As for the channel: read events even if the wait was cancelled.
            bool const goes_on = d.watch->tell();
            std::lock_guard const lock{mutex_};
            d.is_waiting = false;
            if (goes_on) wait(d);
        }
    );
}

// REQUIRES: mutex_ is held.
void event_channel::wait() {
    for (auto& [device, d] : devices_) wait(d);
    if (is_waiting_ || is_shut_down_ || live_ids_ == 0) return;
    is_waiting_ = true;
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
