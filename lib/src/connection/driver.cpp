#include <rcverbs/experimental/protocol/driver.hpp>

#include "connection/actor_impl.hpp"
#include "connection/core.hpp"
#include "connection/leaked_resources.hpp"
#include "verbs/region_record.hpp"

namespace rcverbs::protocol {

namespace asio = boost::asio;

class driver::impl {
public:
    explicit impl(connection over) : lower{std::move(over)} {}

    connection lower;
    hosting::light_mutex mutex;
    failure found;  // guarded by the mutex, as any thread may read it
};

driver::driver(connection over)
    : actor{[&] {
          if (!over.is_valid()) throw boost::system::system_error{errc::not_connected, "protocol"};
          return std::make_shared<actor::impl>(
              detail::access::core_of(over)->order(), over.get_executor()
          );
      }()},
      impl_{std::make_shared<impl>(std::move(over))} {}

driver::~driver() = default;

void driver::keep_for_messages(std::size_t count) noexcept {
    detail::access::core_of(impl_->lower)->keep_for_messages(count);
}

void driver::attach() {
    actor::attach();
    detail::access::core_of(impl_->lower)->call_at_end([weak = weak_from_this()] {
        auto const self = std::static_pointer_cast<driver>(weak.lock());
        if (self != nullptr) self->in_order([core = self.get()] { core->end(); });
    });
}

void driver::end() {
    failure why = last_failure();
    if (!why.code) {
        why.code = why.reason == close_reason::completed ? error_code{asio::error::eof}
                   : why.reason == close_reason::peer_disconnected
                       ? error_code{errc::peer_disconnected}
                       : error_code{asio::error::operation_aborted};
    }
    {
        std::shared_ptr<actor> kept;
        hosting::light_lock const lock{actor::impl_->mutex};
        actor::impl_->has_ended = true;
        kept.swap(actor::impl_->kept);
    }
    actor::impl_->end_code = why.code;
    on_end(why);
}

void driver::keep_until_end() noexcept {
    auto const self = weak_from_this().lock();
    hosting::light_lock const lock{actor::impl_->mutex};
    // The context, which would bring the end, is gone.
    if (!actor::impl_->has_ended && actor::impl_->executor != nullptr) actor::impl_->kept = self;
}

bool driver::is_undrained() const noexcept {
    return detail::access::core_of(impl_->lower)->is_queue_pair_left();
}

void driver::keep_if_undrained(registered_buffer& memory) {
    if (memory.size() > 0 && is_undrained())
        detail::leak_memory(std::make_shared<registered_buffer>(std::move(memory)));
}

// The driver's context is the connection's.
bool driver::stop_device() noexcept { return detail::access::core_of(impl_->lower)->stop_device(); }

connection& driver::lower() noexcept { return impl_->lower; }
connection const& driver::lower() const noexcept { return impl_->lower; }

void driver::close() noexcept {
    keep_until_end();
    impl_->lower.close();
}

error_code driver::fail(step where, error_code why, close_reason reason) noexcept {
    {
        failure const now{where, why, impl_->lower.remote_endpoint(), 0, reason};
        hosting::light_lock const lock{impl_->mutex};
        if (impl_->found.reason == close_reason::completed) return why;
        if (!impl_->found.code) impl_->found = now;
    }
    keep_until_end();
    if (reason == close_reason::protocol_error) impl_->lower.close(why);
    else impl_->lower.close();
    return why;
}

bool driver::complete() noexcept {
    endpoint const peer = impl_->lower.remote_endpoint();
    hosting::light_lock const lock{impl_->mutex};
    if (impl_->found.code) return false;
    impl_->found.address = peer;
    impl_->found.reason = close_reason::completed;
    return true;
}

failure driver::last_failure() const {
    failure const of_connection = impl_->lower.last_failure();
    hosting::light_lock const lock{impl_->mutex};
    // After a protocol that has completed, the disconnect by the peer is not a failure.
    bool const is_own = impl_->found.code || impl_->found.reason == close_reason::completed;
    failure all = is_own ? impl_->found : of_connection;
    if (all.reason == close_reason::open) all.reason = of_connection.reason;
    return all;
}

// --- memory for the peer -------------------------------------------------------------------------

remote_region expose(
    const_slice const& what, access_flags rights, connection const& on, error_code& ec
) noexcept {
    ec = detail::check(
        detail::access::mark_of(what), detail::access::impl_of(on.domain()).get(), rights
    );
    if (!ec && detail::access::mark_of(what).record == nullptr) ec = errc::access_denied;
    return ec ? remote_region{} : what.remote(ec);
}

}  // namespace rcverbs::protocol
