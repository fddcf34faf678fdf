// membership.hpp — how an object learns that an execution context that it uses is being destroyed.
// Internal.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution_context.hpp>

#include <cstdint>
#include <memory>

#include <rcverbs/export.hpp>

namespace rcverbs::hosting {

class members;
struct member_registry;

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

/// A place in the list of a context's members; left on destruction. It may outlive the context.
class RCVERBS_EXPORT membership {
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
    std::shared_ptr<member_registry> registry_;
};

}  // namespace rcverbs::hosting
