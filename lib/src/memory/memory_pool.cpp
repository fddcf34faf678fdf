#include <rcverbs/memory_pool.hpp>

#include <boost/asio/error.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "error/detailed_error.hpp"
#include <rcverbs/detail/option_check.hpp>
#include "memory/memory_pool_core.hpp"

namespace rcverbs {

namespace asio = boost::asio;

char const* memory_pool_exhausted::what() const noexcept {
    return code_ == errc::pool_exhausted
               ? "the memory pool has registered as much as memory_pool_options::bytes_max allows"
               : "the memory pool could not register more memory";
}

namespace detail {

namespace {

std::size_t rounded_up(std::size_t value, std::size_t to) noexcept {
    return (value + to - 1) / to * to;
}

}  // namespace

// --- making --------------------------------------------------------------------------------------

std::shared_ptr<memory_pool_core> memory_pool_core::make(
    std::span<protection_domain const> domains, memory_pool_options options
) {
    constexpr std::size_t bytes_most = std::size_t{1} << 46;
    std::size_t const page = chunk::page_bytes(options.pages);
    option_check check{"memory_pool_options"};
    check.that(!domains.empty() && domains.size() <= 16, "domains", "are not 1 to 16")
        .within("chunk_bytes", options.chunk_bytes, std::size_t{64} << 10, bytes_most)
        .within("bytes_max", options.bytes_max, std::size_t{64} << 10, bytes_most)
        .that(
            rounded_up(options.chunk_bytes, page) <= options.bytes_max,
            "bytes_max",
            "is less than a chunk"
        )
        .within("reserve_bytes", options.reserve_bytes, 0, options.bytes_max / page * page)
        .within("registration_threads_max", options.registration_threads_max, 1, 64);
    throw_if_refused(check.problem());
    options.chunk_bytes = rounded_up(options.chunk_bytes, page);
    auto made = std::make_shared<memory_pool_core>(domains, options);
    error_code ec;
    made->reserve(options.reserve_bytes, ec);
    if (ec) throw_registration_failure(domains.front(), ec, options.reserve_bytes);
    return made;
}

memory_pool_core::memory_pool_core(
    std::span<protection_domain const> domains, memory_pool_options const& options
)
    : domains_{domains.begin(), domains.end()},
      options_{options} {
    // deallocate() must not allocate.
    for (shard& s : shards_) {
        for (unsigned c = 0; c < class_count; ++c)
            s.free[c].reserve((cached_bytes_max >> (c + class_first)) + 1);
    }
}

// --- sizes ---------------------------------------------------------------------------------------

std::pair<std::size_t, std::size_t> memory_pool_core::block_of(
    std::size_t size_bytes, std::size_t alignment
) noexcept {
    size_bytes = std::max<std::size_t>(size_bytes, 1);
    if (!is_small(size_bytes, alignment))
        return {best_fit::rounded(size_bytes), std::max(alignment, best_fit::granule_bytes)};
    std::size_t const block =
        std::bit_ceil(std::max({size_bytes, alignment, std::size_t{1} << class_first}));
    return {block, std::min(block, alignment_max)};
}

unsigned memory_pool_core::class_of(std::size_t block_bytes) noexcept {
    return static_cast<unsigned>(std::countr_zero(block_bytes)) - class_first;
}

// --- caches --------------------------------------------------------------------------------------

memory_pool_core::shard& memory_pool_core::my_shard() noexcept {
    static std::atomic<std::size_t> threads{0};
    // Relaxed, as the counts of used bytes below: numbers that order nothing.
    thread_local std::size_t const mine = threads.fetch_add(1, std::memory_order_relaxed);
    return shards_[mine % shard_count];
}

std::byte* memory_pool_core::from_cache(std::size_t block_bytes) {
    shard& s = my_shard();
    std::lock_guard const lock{s.mutex};
    auto& list = s.free[class_of(block_bytes)];
    if (list.empty()) return nullptr;
    std::byte* const block = list.back();
    list.pop_back();
    s.bytes -= block_bytes;
    return block;
}

// Gives all but `keep` blocks of a class back to the chunks. REQUIRES: the shard's lock.
void memory_pool_core::flush(shard& of, unsigned of_class, std::size_t keep) noexcept {
    auto& list = of.free[of_class];
    std::size_t const block_bytes = std::size_t{1} << (of_class + class_first);
    if (list.size() <= keep) return;
    guard const lock{mutex_};
    while (list.size() > keep) {
        free_.free(list.back(), block_bytes);
        list.pop_back();
        of.bytes -= block_bytes;
    }
}

void memory_pool_core::flush_all() noexcept {
    for (shard& s : shards_) {
        std::lock_guard const lock{s.mutex};
        for (unsigned c = 0; c < class_count; ++c) flush(s, c, 0);
    }
}

// --- chunks --------------------------------------------------------------------------------------

bool memory_pool_core::grow(guard& lock, std::size_t least_bytes, error_code& ec) noexcept {
    std::size_t const page = chunk::page_bytes(options_.pages);
    std::size_t const least = rounded_up(least_bytes, page);
    std::size_t const taken = registered_bytes_ + pending_bytes_ + leaving_bytes_;
    std::size_t const room = (options_.bytes_max - taken) / page * page;
    if (least > room) {
        // Another thread's chunk may have room for this allocation, or leave it.
        if (pending_bytes_ == 0 && leaving_bytes_ == 0) {
            ec = errc::pool_exhausted;
            return false;
        }
        has_grown_.wait(lock);
        return true;
    }
    std::size_t const size = std::clamp(options_.chunk_bytes, least, room);
    pending_bytes_ += size;
    lock.unlock();
    std::optional<chunk> made = make_chunk(size, ec);
    lock.lock();
    pending_bytes_ -= size;
    if (made && !add(*made)) ec = make_error_code(boost::system::errc::not_enough_memory);
    has_grown_.notify_all();
    return !ec;
}

std::optional<chunk> memory_pool_core::make_chunk(std::size_t size_bytes, error_code& ec) noexcept {
    try {
        return chunk::make(domains_, size_bytes, options_, ec);
    } catch (std::bad_alloc const&) {
        ec = make_error_code(boost::system::errc::not_enough_memory);
        return std::nullopt;
    }
}

// False if there is no memory to keep account of the chunk. REQUIRES: the lock.
bool memory_pool_core::add(chunk& made) noexcept {
    std::byte* const base = made.base();
    std::size_t const size = made.size();
    std::unique_lock const chunks_lock{chunks_mutex_};
    try {
        chunks_.try_emplace(base, std::move(made));
        free_.add_range(base, size);
    } catch (std::bad_alloc const&) {
        chunks_.erase(base);
        return false;
    }
    registered_bytes_ += size;
    return true;
}

std::byte* memory_pool_core::from_chunks(
    std::size_t block_bytes, std::size_t alignment, error_code& ec
) noexcept {
    bool has_flushed = false;
    guard lock{mutex_};
    for (;;) {
        try {
            if (std::byte* const block = free_.allocate(block_bytes, alignment)) return block;
        } catch (std::bad_alloc const&) {
            ec = make_error_code(boost::system::errc::not_enough_memory);
            return nullptr;
        }
        ec.clear();
        if (grow(lock, block_bytes, ec)) continue;
        if (has_flushed) return nullptr;
        // What other threads have in their caches may be enough, or chunks that are free make room
        // for a larger one. They stay registered if they would not.
        lock.unlock();
        flush_all();
        has_flushed = true;
        lock.lock();
        std::size_t const used_bytes = registered_bytes_ - free_.free_bytes();
        if (free_.largest_free_bytes() >= block_bytes ||
            block_bytes > options_.bytes_max - used_bytes) {
            continue;
        }
        lock.unlock();
        deregister_unused();
        lock.lock();
    }
}

void memory_pool_core::to_chunks(std::byte* block, std::size_t block_bytes) noexcept {
    {
        guard const lock{mutex_};
        free_.free(block, block_bytes);
    }
    if (waiting_.load() > 0) serve();
}

// --- allocation ----------------------------------------------------------------------------------

void memory_pool_core::count_use(std::size_t size_bytes) noexcept {
    std::size_t const now =
        used_bytes_.fetch_add(size_bytes, std::memory_order_relaxed) + size_bytes;
    std::size_t most = used_bytes_max_.load(std::memory_order_relaxed);
    while (now > most &&
           !used_bytes_max_.compare_exchange_weak(most, now, std::memory_order_relaxed)) {}
}

std::byte* memory_pool_core::finish(std::byte* block, std::size_t size_bytes) noexcept {
    count_use(size_bytes);
    if (options_.is_zeroed) std::memset(block, 0, size_bytes);
    return block;
}

bool memory_pool_core::can_ever_serve(std::size_t size_bytes, std::size_t alignment)
    const noexcept {
    if (alignment > alignment_max || size_bytes > options_.bytes_max) return false;
    // Chunks consist of pages.
    std::size_t const page = chunk::page_bytes(options_.pages);
    std::size_t const pages = options_.bytes_max / page;
    return rounded_up(block_of(size_bytes, alignment).first, page) <= pages * page;
}

std::byte* memory_pool_core::allocate(
    std::size_t size_bytes, std::size_t alignment, error_code& ec
) {
    if (!can_ever_serve(size_bytes, alignment)) {
        ec = errc::pool_exhausted;
        return nullptr;
    }
    auto const [block_bytes, block_alignment] = block_of(size_bytes, alignment);
    std::byte* block = is_small(size_bytes, alignment) ? from_cache(block_bytes) : nullptr;
    if (block == nullptr) block = from_chunks(block_bytes, block_alignment, ec);
    return block == nullptr ? nullptr : finish(block, size_bytes);
}

void memory_pool_core::deallocate(
    std::byte* block, std::size_t size_bytes, std::size_t alignment
) noexcept {
    used_bytes_.fetch_sub(size_bytes, std::memory_order_relaxed);
    std::size_t const block_bytes = block_of(size_bytes, alignment).first;
    if (!is_small(size_bytes, alignment) || waiting_.load() > 0)
        return to_chunks(block, block_bytes);
    {
        unsigned const c = class_of(block_bytes);
        std::size_t const most = cached_bytes_max / block_bytes;
        shard& s = my_shard();
        std::lock_guard const lock{s.mutex};
        if (s.free[c].size() >= most) flush(s, c, most / 2);
        s.free[c].push_back(block);
        s.bytes += block_bytes;
    }
    // A wait that began meanwhile has not seen this block.
    if (waiting_.load() > 0) {
        flush_all();
        serve();
    }
}

// --- waiting -------------------------------------------------------------------------------------

void memory_pool_core::start_allocate(
    std::size_t size_bytes,
    std::size_t alignment,
    asio::any_io_executor const& executor,
    allocate_handler handler
) {
    auto const what = waiting_allocation::make(size_bytes, alignment, executor, std::move(handler));
    if (!can_ever_serve(size_bytes, alignment))
        return complete(*what, errc::pool_exhausted, nullptr);
    {
        guard const lock{mutex_};
        waiters_.add(waiter{what}, weak_from_this(), &memory_pool_core::cancel);
        ++waiting_;
    }
    flush_all();
    serve();
}

// The handler runs later, on its executor. A block that it does not get goes back to the pool, and
// so does one for which there is no memory to post the handler.
void memory_pool_core::complete(
    waiting_allocation& what, error_code ec, std::byte* block
) noexcept {
    auto const give_back = [weak = weak_from_this(),
                            size_bytes = what.size_bytes,
                            alignment = what.alignment](std::byte* unused) {
        if (auto const self = weak.lock()) self->deallocate(unused, size_bytes, alignment);
    };
    try {
        what.complete(ec, block, give_back);
    } catch (...) {
        if (block != nullptr) give_back(block);
    }
}

// Serves waits in their order, for as long as there is memory. One thread at a time does, or waits
// would overtake each other.
void memory_pool_core::serve() noexcept {
    guard lock{mutex_};
    serve_again_ = true;
    if (is_serving_) return;
    is_serving_ = true;
    while (std::exchange(serve_again_, false)) {
        while (!waiters_.empty()) {
            // Neither this nor put_back() allocates.
            auto first = waiters_.take_first();
            waiting_allocation& next = *first.front().handler.what;
            serving_serial_ = first.front().serial;
            is_cancelled_ = false;
            lock.unlock();
            bool const is_served = serve(next);
            // Without the lock, because a handler that could not be posted goes with it.
            if (is_served) first.clear();
            lock.lock();
            serving_serial_ = 0;
            if (is_served) continue;
            if (!is_cancelled_) {
                waiters_.put_back(first);
                break;
            }
            lock.unlock();
            --waiting_;
            complete(next, asio::error::operation_aborted, nullptr);
            first.clear();
            lock.lock();
        }
    }
    is_serving_ = false;
}

// False if there is no memory for it.
bool memory_pool_core::serve(waiting_allocation& next) noexcept {
    error_code ec;
    std::byte* block = nullptr;
    if (next.is_wanted()) {
        auto const [bytes, alignment] = block_of(next.size_bytes, next.alignment);
        block = from_chunks(bytes, alignment, ec);
        if (block == nullptr && ec == errc::pool_exhausted) return false;
    }
    --waiting_;
    if (block != nullptr) finish(block, next.size_bytes);
    complete(next, ec, block);
    return true;
}

void memory_pool_core::cancel(std::uint64_t serial) {
    wait_list<waiter>::removed taken;
    {
        guard const lock{mutex_};
        taken = waiters_.take(serial);
        if (taken.empty()) {
            // It is being served: serve() looks again if that fails.
            if (serial == serving_serial_) is_cancelled_ = true;
            return;
        }
    }
    --waiting_;
    complete(*taken.front().handler.what, asio::error::operation_aborted, nullptr);
}

// --- the rest ------------------------------------------------------------------------------------

void memory_pool_core::reserve(std::size_t size_bytes, error_code& ec) {
    std::mutex failed;
    auto const work = [&] {
        for (;;) {
            error_code mine;
            guard lock{mutex_};
            std::size_t const taken = registered_bytes_ + pending_bytes_;
            if (taken >= size_bytes) return;
            // The last chunk is as small as it may be.
            std::size_t const missing = size_bytes - taken;
            std::size_t const registered = registered_bytes_;
            bool const is_leaving = leaving_bytes_ > 0;
            if (!grow(lock, std::min(missing, options_.chunk_bytes), mine)) {
                std::lock_guard const note{failed};
                ec = mine;
                return;
            }
            bool const is_same = registered_bytes_ == registered && pending_bytes_ == 0;
            if (is_same && !is_leaving) return;
        }
    };
    std::size_t const chunks = (size_bytes + options_.chunk_bytes - 1) / options_.chunk_bytes;
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < std::min<std::size_t>(chunks, options_.registration_threads_max);
         ++i) {
        try {
            helpers.emplace_back(work);
        } catch (std::system_error const&) {
            break;  // the threads that there are do it all
        }
    }
    work();
}

std::size_t memory_pool_core::release_unused() noexcept {
    flush_all();
    std::size_t const bytes = deregister_unused();
    if (waiting_.load() > 0) serve();
    return bytes;
}

std::size_t memory_pool_core::deregister_unused() noexcept {
    std::map<std::byte const*, chunk> gone;
    std::size_t bytes = 0;
    {
        guard const lock{mutex_};
        std::unique_lock const chunks_lock{chunks_mutex_};
        for (auto i = chunks_.begin(); i != chunks_.end();) {
            auto const next = std::next(i);
            if (free_.remove_range(i->second.base())) {
                bytes += i->second.size();
                gone.insert(chunks_.extract(i));
            }
            i = next;
        }
        // Other threads that need room wait for it.
        registered_bytes_ -= bytes;
        leaving_bytes_ += bytes;
    }
    gone.clear();  // without the locks
    {
        guard const lock{mutex_};
        leaving_bytes_ -= bytes;
    }
    has_grown_.notify_all();
    return bytes;
}

chunk const& memory_pool_core::chunk_of(void const* memory, std::size_t size_bytes) const {
    auto const* const begin = static_cast<std::byte const*>(memory);
    auto const after = chunks_.upper_bound(begin);
    if (after != chunks_.begin()) {
        chunk const& found = std::prev(after)->second;
        auto const offset = static_cast<std::size_t>(begin - found.base());
        if (offset <= found.size() && size_bytes <= found.size() - offset) return found;
    }
    throw boost::system::system_error{errc::out_of_range, "memory of a memory pool"};
}

mutable_slice memory_pool_core::slice_of(
    void const* memory, std::size_t size_bytes, protection_domain const* domain
) const {
    std::size_t number = 0;
    if (domain != nullptr) {
        auto const found = std::find(domains_.begin(), domains_.end(), *domain);
        if (found == domains_.end())
            throw boost::system::system_error{errc::foreign_domain, "a memory pool's domains"};
        number = static_cast<std::size_t>(found - domains_.begin());
    }
    std::shared_lock const lock{chunks_mutex_};
    chunk const& at = chunk_of(memory, size_bytes);
    auto const offset = static_cast<std::size_t>(static_cast<std::byte const*>(memory) - at.base());
    return at.region(number).slice(offset, size_bytes);
}

remote_region memory_pool_core::remote_of(void const* memory, std::size_t size_bytes) const {
    std::shared_lock const lock{chunks_mutex_};
    chunk const& at = chunk_of(memory, size_bytes);
    auto const offset = static_cast<std::size_t>(static_cast<std::byte const*>(memory) - at.base());
    return at.region(0).remote().slice(offset, size_bytes);
}

memory_pool_statistics memory_pool_core::statistics() const {
    memory_pool_statistics s;
    for (shard const& one : shards_) {
        std::lock_guard const lock{const_cast<std::mutex&>(one.mutex)};
        s.cached_bytes += one.bytes;
    }
    guard const lock{mutex_};
    std::shared_lock const chunks_lock{chunks_mutex_};
    s.registered_bytes = registered_bytes_;
    s.chunks = chunks_.size();
    for (auto const& [base, one] : chunks_) {
        if (one.is_huge()) s.huge_bytes += one.size();
        if (one.is_on_node()) s.node_bytes += one.size();
    }
    s.used_bytes = used_bytes_;
    s.used_bytes_max = used_bytes_max_;
    s.free_bytes = free_.free_bytes();
    s.largest_free_bytes = free_.largest_free_bytes();
    s.waiting = waiters_.size();
    return s;
}

}  // namespace detail

// --- memory_pool ---------------------------------------------------------------------------------

memory_pool::memory_pool(protection_domain const& domain, memory_pool_options const& options)
    : memory_pool{std::span{&domain, 1}, options} {}

memory_pool::memory_pool(
    std::span<protection_domain const> domains, memory_pool_options const& options
)
    : core_{detail::memory_pool_core::make(domains, options)} {}

memory_pool::~memory_pool() = default;

void* memory_pool::do_allocate(std::size_t size_bytes, std::size_t alignment) {
    error_code ec;
    std::byte* const block = core_->allocate(size_bytes, alignment, ec);
    if (block == nullptr) throw memory_pool_exhausted{ec};
    return block;
}

void memory_pool::do_deallocate(void* memory, std::size_t size_bytes, std::size_t alignment) {
    core_->deallocate(static_cast<std::byte*>(memory), size_bytes, alignment);
}

void memory_pool::start_allocate(
    std::size_t size_bytes,
    std::size_t alignment,
    asio::any_io_executor const& executor,
    detail::allocate_handler handler
) {
    core_->start_allocate(size_bytes, alignment, executor, std::move(handler));
}

void memory_pool::reserve(std::size_t size_bytes) {
    error_code ec;
    core_->reserve(size_bytes, ec);
    if (ec) detail::throw_registration_failure(core_->domain(), ec, size_bytes);
}

std::size_t memory_pool::release_unused() noexcept { return core_->release_unused(); }

mutable_slice memory_pool::slice_of(void const* memory, std::size_t size_bytes) const {
    return core_->slice_of(memory, size_bytes, nullptr);
}

mutable_slice memory_pool::slice_of(
    void const* memory, std::size_t size_bytes, protection_domain const& domain
) const {
    return core_->slice_of(memory, size_bytes, &domain);
}

remote_region memory_pool::remote_of(void const* memory, std::size_t size_bytes) const {
    return core_->remote_of(memory, size_bytes);
}

memory_pool_statistics memory_pool::statistics() const { return core_->statistics(); }

}  // namespace rcverbs
