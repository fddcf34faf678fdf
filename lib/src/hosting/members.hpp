// members.hpp — the objects that use an execution context, and must release what they have of it
// before its services are gone.
//
// An Asio service. When the context is destroyed, each member is notified once while the other
// services still work: first those that stand on connections, then connections and all others, then
// the guests, which run elsewhere but keep handlers of this context. Waiting handlers are destroyed
// uncalled, as in Asio.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution_context.hpp>

#include <memory>

#include <rcverbs/detail/membership.hpp>

namespace rcverbs::hosting {

class members final : public boost::asio::execution_context::service {
public:
    static boost::asio::execution_context::id id;
    using key_type = members;

    explicit members(boost::asio::execution_context& context);
    ~members() override;

    /// The service of an executor's context.
    static members& of(boost::asio::any_io_executor const& executor);

    /// Notifies all members. Services that members use call it in their own shutdown(), because
    /// they may be shut down before this one.
    void notify_all() noexcept;

private:
    friend class membership;

    void shutdown() noexcept override { notify_all(); }

    std::shared_ptr<member_registry> const registry_;
};

}  // namespace rcverbs::hosting
