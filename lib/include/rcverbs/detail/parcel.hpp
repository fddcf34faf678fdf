// parcel.hpp — the handlers of one round of completions for an executor other than the
// connection's, posted together as one function. Internal.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include <rcverbs/detail/handler_memory.hpp>

namespace rcverbs::detail {

/// Functions to be called in order, stored in one block of memory.
class parcel {
public:
    parcel(parcel const&) = delete;
    parcel& operator=(parcel const&) = delete;
    virtual ~parcel() {
        while (node* const n = pop()) n->end(n, false);
    }

    static constexpr std::size_t block_bytes = handler_memory::block_bytes_max;
    static void* operator new(std::size_t) { return handler_memory::take(block_bytes); }
    static void operator delete(void* block) noexcept { handler_memory::give(block, block_bytes); }

    /// Moves a function into the parcel; false if there is no room.
    template <class Function>
    bool add(Function& function) {
        constexpr bool is_far = sizeof(near_node<Function>) > room_bytes ||
                                alignof(near_node<Function>) > alignof(std::max_align_t);
        using kept = std::conditional_t<is_far, far_node<Function>, near_node<Function>>;
        std::size_t const at = round_up(used_, alignof(kept));
        if (at + sizeof(kept) > room_bytes) return false;
        push(*::new (static_cast<void*>(room() + at)) kept{std::move(function)});
        used_ = at + sizeof(kept);
        return true;
    }

    /// Calls the functions in order. If one throws, the rest remain in the parcel.
    void run() {
        while (node* const n = pop()) n->end(n, true);
    }
    bool is_empty() const noexcept { return first_ == nullptr; }

    /// True if the parcel is for this executor.
    template <class Executor>
    bool goes_to(Executor const& e) const noexcept {
        return type_ == &type_of<Executor> && *static_cast<Executor const*>(to_) == e;
    }
    /// Passes the parcel to its executor, which calls the functions and deletes the parcel. By post
    /// if `has_time`, otherwise by dispatch, which may call the functions at once.
    virtual void send(bool has_time) = 0;

    parcel* next = nullptr;

protected:
    template <class Executor>
    explicit parcel(Executor const& to) noexcept : type_{&type_of<Executor>},
                                                   to_{&to} {}

private:
    struct node {
        // Calls the function if `is_wanted`, then destroys it.
        void (*end)(node*, bool is_wanted);
        node* next = nullptr;
    };
    template <class Function>
    struct near_node : node {
        Function function;
        explicit near_node(Function&& f) : node{&finish}, function{std::move(f)} {}

        static void finish(node* n, bool is_wanted) {
            struct cleanup {
                near_node& self;
                ~cleanup() { std::destroy_at(&self); }
            } const on_return{*static_cast<near_node*>(n)};
            if (is_wanted) on_return.self.function();
        }
    };
    template <class Function>
    struct far_node : node {
        std::unique_ptr<Function> function;
        explicit far_node(Function&& f)
            : node{&finish},
              function{std::make_unique<Function>(std::move(f))} {}

        static void finish(node* n, bool is_wanted) {
            auto* const self = static_cast<far_node*>(n);
            std::unique_ptr<Function> const own{std::move(self->function)};
            self->~far_node();
            if (is_wanted) (*own)();
        }
    };

    // The functions are stored in the block behind the object, which takes at most header_bytes.
    static constexpr std::size_t header_bytes = 256;
    static constexpr std::size_t room_bytes = block_bytes - header_bytes;
    std::byte* room() noexcept { return reinterpret_cast<std::byte*>(this) + header_bytes; }

    static constexpr std::size_t round_up(std::size_t n, std::size_t alignment) noexcept {
        return (n + alignment - 1) / alignment * alignment;
    }
    void push(node& n) noexcept {
        (last_ != nullptr ? last_->next : first_) = &n;
        last_ = &n;
    }
    node* pop() noexcept {
        node* const n = first_;
        if (n == nullptr) return nullptr;
        first_ = n->next;
        if (first_ == nullptr) last_ = nullptr;
        return n;
    }

    template <class Executor>
    static inline char const type_of{};

    void const* const type_;
    void const* const to_;
    node* first_ = nullptr;
    node* last_ = nullptr;
    std::size_t used_ = 0;

    template <class Executor>
    friend class parcel_to;
};

template <class Executor>
class parcel_to final : public parcel {
public:
    explicit parcel_to(Executor const& to) : parcel{to_}, to_{to}, work_{to} {
        static_assert(sizeof(parcel_to) <= header_bytes);
    }

    void send(bool has_time) override {
        running arriving{std::unique_ptr<parcel_to>{this}};
        Executor const to = to_;
        if (has_time) return post(to, std::move(arriving));
        boost::asio::dispatch(to, std::move(arriving));
    }

private:
    // A type-erased executor may support dispatch only.
    template <class Function>
    static void post(Executor const& to, Function&& f) {
        if constexpr (requires { boost::asio::post(to, std::forward<Function>(f)); }) {
            boost::asio::post(to, std::forward<Function>(f));
        } else {
            boost::asio::dispatch(to, std::forward<Function>(f));
        }
    }

    struct running {
        std::unique_ptr<parcel_to> self;

        // If a handler throws, the others are called all the same, before those of later parcels, and
        // then the exception leaves. Further exceptions leave from functions of their own.
        void operator()() {
            std::exception_ptr first;
            while (!self->is_empty()) {
                try {
                    self->run();
                } catch (...) {
                    if (first == nullptr) first = std::current_exception();
                    else
                        post(self->to_, [e = std::current_exception()] {
                            std::rethrow_exception(e);
                        });
                }
            }
            if (first != nullptr) std::rethrow_exception(first);
        }
    };

    Executor const to_;
    // Keeps the executor's context running until the functions have been called.
    boost::asio::executor_work_guard<Executor> const work_;
};

/// The parcels of one round.
class outgoing_parcels {
public:
    outgoing_parcels() = default;
    outgoing_parcels(outgoing_parcels const&) = delete;
    outgoing_parcels& operator=(outgoing_parcels const&) = delete;
    /// After a handler's exception, posts the remaining parcels; none of them is called here.
    ~outgoing_parcels() {
        while (first_ != nullptr) std::exchange(first_, first_->next)->send(true);
    }
    void send() {
        while (first_ != nullptr) std::exchange(first_, first_->next)->send(false);
    }

    template <class Executor, class Function>
    void add(Executor const& to, Function&& function) {
        // The last parcel for this executor, so that the order is kept.
        parcel* going = nullptr;
        for (parcel* p = first_; p != nullptr; p = p->next) {
            if (p->goes_to(to)) going = p;
        }
        if (going != nullptr && going->add(function)) return;
        auto made = std::make_unique<parcel_to<Executor>>(to);
        made->add(function);
        (last_ != nullptr ? last_->next : first_) = made.get();
        last_ = made.release();
    }

private:
    parcel* first_ = nullptr;
    parcel* last_ = nullptr;
};

}  // namespace rcverbs::detail
