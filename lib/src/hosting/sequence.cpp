#include "hosting/sequence.hpp"

#include <boost/asio/post.hpp>

#include <new>

namespace rcverbs::hosting {

// Asio frees the memory before it calls the handler, so that the handler can allocate it again.
template <class T>
struct sequence::slot_allocator {
    using value_type = T;

    explicit slot_allocator(sequence& s) noexcept : of{&s} {}
    template <class U>
    slot_allocator(slot_allocator<U> const& other) noexcept : of{other.of} {}

    T* allocate(std::size_t n) {
        if (!of->is_slot_taken_ && n * sizeof(T) <= of->slot_.size() &&
            alignof(T) <= alignof(std::max_align_t)) {
            of->is_slot_taken_ = true;
            return reinterpret_cast<T*>(of->slot_.data());
        }
        return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{alignof(T)}));
    }
    void deallocate(T* p, std::size_t) noexcept {
        if (reinterpret_cast<std::byte*>(p) == of->slot_.data()) {
            of->is_slot_taken_ = false;
        } else {
            ::operator delete (p, std::align_val_t{alignof(T)});
        }
    }
    friend bool operator==(slot_allocator const&, slot_allocator const&) noexcept = default;

    sequence* of;
};

// An execution context that is destroyed destroys the runner uncalled. The posted tasks will then
// never run. They are cleaned up, because they may own objects that keep the sequence alive.
struct sequence::runner {
    using allocator_type = slot_allocator<void>;

    std::shared_ptr<sequence> self;

    explicit runner(std::shared_ptr<sequence> s) noexcept : self{std::move(s)} {}
    runner(runner&&) noexcept = default;
    ~runner() {
        if (self != nullptr) self->abandon();
    }

    void operator()() {
        std::shared_ptr<sequence> const running = std::move(self);
        running->run();
    }
    allocator_type get_allocator() const noexcept { return allocator_type{*self}; }
};

void task_list::push_back(order_task& t) noexcept {
    t.next_ = nullptr;
    (last_ != nullptr ? last_->next_ : first_) = &t;
    last_ = &t;
}

void task_list::push_front(task_list& other) noexcept {
    if (other.first_ == nullptr) return;
    other.last_->next_ = first_;
    first_ = other.first_;
    if (last_ == nullptr) last_ = other.last_;
    other = {};
}

order_task* task_list::pop_front() noexcept {
    order_task* const t = first_;
    if (t == nullptr) return nullptr;
    first_ = t->next_;
    if (first_ == nullptr) last_ = nullptr;
    return t;
}

sequence::sequence(boost::asio::any_io_executor executor) : executor_{std::move(executor)} {
    if (auto* const io = executor_.target<boost::asio::io_context::executor_type>())
        concrete_ = *io;
}

sequence::~sequence() { abandon(); }

// The one who takes the turn runs the sequence.
[[gnu::always_inline]] inline sequence::turn sequence::add(task& what, task_list& to) {
    light_lock const lock{mutex_};
    if (is_abandoned_) return turn::abandoned;
    to.push_back(what);
    return std::exchange(is_scheduled_, true) ? turn::others : turn::taken;
}

void sequence::post(task& what, task_list& to) {
    switch (add(what, to)) {
    case turn::taken: return schedule();
    case turn::others: return;
    case turn::abandoned: return what.run(false);
    }
}

void sequence::dispatch(task& what) {
    std::shared_ptr<sequence> const self = shared_from_this();  // the task may be what keeps it
    switch (add(what, posted_)) {
    case turn::taken: return run();
    case turn::others: return;
    case turn::abandoned: return what.run(false);
    }
}

// At most one runner is queued or running.
void sequence::schedule() {
    if (concrete_) {
        boost::asio::post(*concrete_, runner{shared_from_this()});
    } else {
        boost::asio::post(executor_, runner{shared_from_this()});
    }
}

void sequence::run() {
    struct running {
        sequence& self;
        task_list now;

        // Also after an exception: the remaining tasks go first in the next run.
        ~running() {
            {
                light_lock const lock{self.mutex_};
                self.posted_.push_front(now);
                self.posted_.push_front(self.resumed_);
                if (self.posted_.is_empty() || self.is_abandoned_) {
                    self.is_scheduled_ = false;
                    return;
                }
            }
            self.schedule();
        }
    } r{*this, {}};
    {
        light_lock const lock{mutex_};
        posted_.push_front(resumed_);
        r.now = std::exchange(posted_, {});
    }
    while (task* const t = r.now.pop_front()) t->run(true);
}

void sequence::abandon() noexcept {
    task_list left;
    {
        light_lock const lock{mutex_};
        is_abandoned_ = true;
        posted_.push_front(resumed_);
        left = std::exchange(posted_, {});
        executor_ = {};
    }
    while (task* const t = left.pop_front()) t->run(false);
}

}  // namespace rcverbs::hosting
