#include "connection/acceptor_core.hpp"

#include <boost/asio/post.hpp>

#include "error/described.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

namespace {

constexpr std::size_t backlog_max = 4096;

}  // namespace

acceptor_core::acceptor_core(asio::io_context& context, acceptor_options options)
    : context_{context}, registry_{asio::use_service<registry>(context)}, options_{std::move(options)},
      admission_{std::make_shared<admission>(admission::limits{options_.connections_max, options_.connections_per_address_max})} {}

acceptor_core::~acceptor_core() {
    if (!is_shut_down_) registry_.remove(this);
}

error_code acceptor_core::listen(endpoint const& local) {
    if (options_.backlog == 0 || options_.backlog > backlog_max) return errc::invalid_option;
    if (options_.busy_answer.size() > reject_data_max) return errc::private_data_too_large;
    if (error_code const ec = validate(options_.connection)) return ec;
    registry_.add(shared_from_this());
    guard const lock{mutex_};
    error_code ec;
    id_ = registry_.channel().make_id(ec);
    if (ec) return ec;
    id_->set_sink(weak_from_this());
    ec = id_->bind(local);
    if (!ec) ec = id_->listen(static_cast<int>(options_.backlog));
    if (ec) return ec;
    local_ = id_->local();
    return ec;
}

void acceptor_core::start_accept(bool establish, accept_handler handler) {
    guard lock{mutex_};
    waiter_type made{std::move(handler), context_.get_executor()};
    if (waiter_ || is_closed_) {
        error_code const ec =
            is_closed_ ? error_code{asio::error::operation_aborted} : make_error_code(errc::operation_in_progress);
        lock.unlock();
        return complete(std::move(made), ec, {});
    }
    if (made.slot().is_connected()) {
        made.slot().assign([weak = weak_from_this(), serial = serial_ + 1](asio::cancellation_type type) {
            auto const self = weak.lock();
            if (self != nullptr && type != asio::cancellation_type::none) self->cancel(serial);
        });
    }
    ++serial_;
    waiter_ = std::move(made);
    wants_established_ = establish;
    // Not here: making a queue pair takes its time, and an initiating function must not.
    asio::post(context_, [self = shared_from_this()] {
        guard inner{self->mutex_};
        self->serve(inner);
    });
}

void acceptor_core::on_event(cm::event& e) {
    guard lock{mutex_};
    if (is_closed_) return;
    if (e.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        ++requests_seen_;
        std::shared_ptr<admission::place> place;
        if (requests_.size() < options_.backlog) place = admission_->admit(e.incoming->peer().address());
        if (place == nullptr) {
            ++refused_busy_;
            lock.unlock();
            return refuse(e);
        }
        requests_.push_back({std::move(e), std::move(place)});
        serve(lock);
    } else if (e.type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
        lock.unlock();
        end(errc::device_removed);
    }
}

void acceptor_core::refuse(cm::event& request) {
    static_cast<void>(request.incoming->reject(options_.busy_answer));
    request.incoming.reset();
}

// Brings the oldest request and the one who waits for it together.
void acceptor_core::serve(guard& lock) {
    if (!waiter_ || requests_.empty() || is_shut_down_) return;
    waiter_type waiter = std::move(waiter_);
    bool const establish = wants_established_;
    std::uint64_t const serial = serial_;
    waiting_request taken = std::move(requests_.front());
    requests_.pop_front();
    lock.unlock();

    error_code ec;
    std::shared_ptr<connection_core> core;
    try {
        core = connection_core::make_for_request(
            context_, options_.connection, std::move(taken.request), std::move(taken.place), ec
        );
    } catch (boost::system::system_error const& failed) {
        ec = failed.code();
    } catch (std::system_error const& failed) {
        ec = {failed.code().value(), boost::system::system_category()};  // no thread could be started
    }
    connection made{core};
    if (ec || !establish) return complete(std::move(waiter), ec, std::move(made));
    connection_core& accepted = *core;
    lock.lock();
    establishing_ = core;
    establishing_serial_ = serial;
    lock.unlock();
    auto shared = std::make_shared<std::pair<waiter_type, connection>>(std::move(waiter), std::move(made));
    accepted.start_accept({}, [shared](error_code failed) {
        shared->first(failed, std::move(shared->second));
    });
}

void acceptor_core::complete(waiter_type waiter, error_code ec, connection made) {
    auto shared = std::make_shared<std::pair<waiter_type, connection>>(std::move(waiter), std::move(made));
    asio::post(context_, [shared, ec] { shared->first(ec, std::move(shared->second)); });
}

// A cancellation may come late: only the wait that it belongs to, or the connection that this wait led to, is meant.
void acceptor_core::cancel(std::uint64_t serial) {
    guard lock{mutex_};
    if (establishing_serial_ == serial) {
        std::shared_ptr<connection_core> const core = establishing_.lock();
        lock.unlock();
        if (core != nullptr && !core->is_open()) core->close();
        return;
    }
    if (serial_ != serial) return;
    waiter_type waiter = std::move(waiter_);
    lock.unlock();
    if (waiter) complete(std::move(waiter), asio::error::operation_aborted, {});
}

void acceptor_core::end(error_code why) noexcept {
    guard lock{mutex_};
    if (is_closed_) return;
    is_closed_ = true;
    waiter_type waiter = std::move(waiter_);
    // The requests' ids refuse their peers when they are destroyed; ids may be destroyed without this lock only.
    std::deque<waiting_request> requests = std::move(requests_);
    std::unique_ptr<cm::id> id = std::move(id_);
    lock.unlock();
    if (waiter) complete(std::move(waiter), why, {});
}

void acceptor_core::shut_down() noexcept {
    guard lock{mutex_};
    is_shut_down_ = true;
    is_closed_ = true;
    waiter_type dropped = std::move(waiter_);
    std::deque<waiting_request> requests = std::move(requests_);
    std::unique_ptr<cm::id> id = std::move(id_);
    lock.unlock();
}

bool acceptor_core::is_open() const {
    guard const lock{mutex_};
    return !is_closed_;
}

endpoint acceptor_core::local() const {
    guard const lock{mutex_};
    return local_;
}

acceptor_statistics acceptor_core::statistics() const {
    guard const lock{mutex_};
    return {requests_seen_, refused_busy_, admission_->count()};
}

}  // namespace rcverbs::detail

namespace rcverbs {

acceptor::acceptor(boost::asio::io_context& context, endpoint const& local, acceptor_options options)
    : core_{std::make_shared<detail::acceptor_core>(context, std::move(options))} {
    if (error_code const ec = core_->listen(local)) {
        throw detail::described{ec, failure{step::listen, ec, local, 0}.message()};
    }
}

acceptor& acceptor::operator=(acceptor&& other) noexcept {
    if (this != &other) {
        close();
        core_ = std::move(other.core_);
    }
    return *this;
}

acceptor::~acceptor() { close(); }

void acceptor::start_accept(
    std::shared_ptr<detail::acceptor_core> const& core, bool establish, detail::accept_handler handler
) {
    core->start_accept(establish, std::move(handler));
}

void acceptor::close() noexcept {
    if (core_ != nullptr) core_->close();
}

bool acceptor::is_open() const { return core_ != nullptr && core_->is_open(); }
endpoint acceptor::local() const { return core_->local(); }
acceptor_statistics acceptor::statistics() const { return core_->statistics(); }
acceptor::executor_type acceptor::get_executor() const noexcept { return core_->context().get_executor(); }

}  // namespace rcverbs
