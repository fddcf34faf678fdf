// access.hpp — what public classes keep to themselves, for the library. Internal.
#pragma once

#include <utility>

namespace rcverbs::detail {

/// Gives the library what public classes keep to themselves.
struct access {
    template <class Handle>
    static auto const& core_of(Handle const& handle) noexcept {
        return handle.core_;
    }
    /// Drops the core without closing it.
    template <class Handle>
    static void forget(Handle& handle) noexcept {
        handle.core_.reset();
    }
    template <class Handle, class... Arguments>
    static Handle make(Arguments&&... arguments) {
        return Handle{std::forward<Arguments>(arguments)...};
    }
    /// Takes the memory of an operation that owns it.
    template <class Leased>
    static auto memory_of(Leased& what) noexcept {
        return std::move(what.memory_);
    }
    /// Of an operation value: its request, and what turns the outcome into its result.
    template <class Op>
    static auto const& request_of(Op const& what) noexcept {
        return what.request_;
    }
    /// Of a request or answer value.
    template <class Value>
    static auto const& content_of(Value const& what) noexcept {
        return what.content_;
    }
    /// Of the completion token `blocking`.
    template <class Token>
    static auto error_of(Token const& token) noexcept {
        return token.ec_;
    }
    template <class Token>
    static auto limit_of(Token const& token) noexcept {
        return token.limit_;
    }
    template <class Op>
    static auto reader_of() noexcept {
        return typename Op::reader{};
    }
    /// Of a slice: what the compiled library takes, and the registration that it belongs to.
    template <class Slice>
    static auto plain_of(Slice const& slice) noexcept {
        return slice.plain();
    }
    template <class Slice>
    static auto mark_of(Slice const& slice) noexcept {
        return slice.mark();
    }
    /// Of const_slices and mutable_slices.
    template <class Slices>
    static auto const& list_of(Slices const& slices) noexcept {
        return slices.list_;
    }
    /// Of a runs_on.
    template <class RunsOn>
    static auto place_of(RunsOn const& where) {
        return where.place();
    }
    /// Of pre_shared_keys.
    template <class Keys>
    static auto const& set_of(Keys const& keys) noexcept {
        return keys.set_;
    }
    template <class Keys>
    static auto const& identity_of(Keys const& keys) noexcept {
        return keys.identity_;
    }
    /// Of a protection_domain.
    template <class Domain>
    static auto const& impl_of(Domain const& domain) noexcept {
        return domain.impl_;
    }
};

}  // namespace rcverbs::detail
