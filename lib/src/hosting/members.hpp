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

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

namespace rcverbs::hosting {

/// An object that uses execution contexts.
class member {
public:
    /// The context is being destroyed: releases everything that belongs to it; no handler of the
    /// context is called afterwards. Called once for each membership, with no lock held.
    virtual void context_is_going(boost::asio::execution_context const& which) noexcept = 0;

protected:
    ~member() = default;
};

/// The order in which the members of a context are notified.
enum class rank : std::uint8_t { above_connections, object, guest };

class membership;

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

    struct registry;

    void shutdown() noexcept override { notify_all(); }

    std::shared_ptr<registry> const registry_;
};

/// A place in the list of a context's members; left on destruction. It may outlive the context.
class membership {
public:
    membership() = default;
    membership(membership const&) = delete;
    membership& operator=(membership const&) = delete;
    ~membership() { leave(); }

    /// REQUIRES: it is in no list.
    void join(boost::asio::execution_context& context, std::weak_ptr<member> who, rank when);
    void join(boost::asio::any_io_executor const& executor, std::weak_ptr<member> who, rank when);
    /// Has no effect in no list, or once the member was notified.
    void leave() noexcept;
    bool is_listed() const noexcept;
    bool is_of(boost::asio::execution_context const& context) const noexcept;

private:
    friend class members;

    void join(members& all, std::weak_ptr<member> who, rank when);

    // Guarded by the registry's mutex.
    membership* next_ = nullptr;
    membership** back_ = nullptr;  // what points at this one; null in no list
    std::weak_ptr<member> who_;
    std::shared_ptr<members::registry> registry_;
};

}  // namespace rcverbs::hosting
