#include "rdma-copy/file_io.hpp"

#include <unistd.h>

#include <cerrno>
#include <utility>

#ifdef RCVERBS_HAS_LIBURING
#include <boost/asio/posix/stream_descriptor.hpp>

#include <liburing.h>
#include <sys/uio.h>
#endif

#include "rdma-copy/result.hpp"

namespace copy {

#ifdef RCVERBS_HAS_LIBURING

// Completions are taken when the ring's descriptor is readable, and right after each submission: a read of
// what the page cache has is complete then.
class file_io::ring : public std::enable_shared_from_this<ring> {
public:
    /// None if the system refuses.
    static std::shared_ptr<ring> open(
        asio::io_context& io, std::span<std::byte> memory, std::size_t transfers_max
    ) {
        auto r = std::make_shared<ring>(io);
        if (io_uring_queue_init(static_cast<unsigned>(transfers_max), &r->ring_, 0) != 0) return {};
        r->is_open_ = true;
        iovec const all{memory.data(), memory.size()};
        // Without, each transfer pins its memory.
        r->has_fixed_buffer_ = io_uring_register_buffers(&r->ring_, &all, 1) == 0;
        int const readable = ::dup(r->ring_.ring_fd);
        if (readable < 0) return {};
        r->readable_.assign(readable);
        return r;
    }

    explicit ring(asio::io_context& io) : io_{io}, readable_{io} {}
    ring(ring const&) = delete;
    ring& operator=(ring const&) = delete;
    ~ring() {
        if (is_open_) io_uring_queue_exit(&ring_);
    }
    void close() {
        boost::system::error_code ignored;
        readable_.close(ignored);
    }

    /// The result of the system call, or a negative errno.
    asio::awaitable<int> start(
        bool is_write, int file, std::uint64_t offset, std::span<std::byte> bytes
    ) {
        co_return co_await asio::async_initiate<asio::use_awaitable_t<> const, void(int)>(
            [this, is_write, file, offset, bytes](auto handler) {
                io_uring_sqe* const e = io_uring_get_sqe(&ring_);
                auto* const waiting = new waiting_handler<decltype(handler)>{std::move(handler)};
                if (e == nullptr) return complete(waiting, -EAGAIN);
                auto const size = static_cast<unsigned>(bytes.size());
                void* const at = bytes.data();
                if (has_fixed_buffer_ && is_write)
                    io_uring_prep_write_fixed(e, file, at, size, offset, 0);
                else if (has_fixed_buffer_) io_uring_prep_read_fixed(e, file, at, size, offset, 0);
                else if (is_write) io_uring_prep_write(e, file, at, size, offset);
                else io_uring_prep_read(e, file, at, size, offset);
                io_uring_sqe_set_data(e, waiting);
                ++under_way_;
                int const submitted = io_uring_submit(&ring_);
                // What the kernel has not taken now goes with the next submission.
                if (submitted < 0) asio::post(io_, [self = shared_from_this()] { self->submit(); });
                take();
                wait();
            },
            asio::use_awaitable
        );
    }

private:
    struct waiting_base {
        virtual ~waiting_base() = default;
        virtual void operator()(int result) = 0;
    };
    template <class Handler>
    struct waiting_handler final : waiting_base {
        explicit waiting_handler(Handler h) : handler{std::move(h)} {}
        void operator()(int result) override { handler(result); }
        Handler handler;
    };

    void complete(waiting_base* w, int result) {
        asio::post(io_, [waiting = std::unique_ptr<waiting_base>{w}, result] {
            (*waiting)(result);
        });
    }
    void submit() {
        if (under_way_ == 0) return;
        int const submitted = io_uring_submit(&ring_);
        if (submitted < 0) asio::post(io_, [self = shared_from_this()] { self->submit(); });
        take();
    }
    void take() {
        io_uring_cqe* c = nullptr;
        while (io_uring_peek_cqe(&ring_, &c) == 0) {
            auto* const w = static_cast<waiting_base*>(io_uring_cqe_get_data(c));
            int const result = c->res;
            io_uring_cqe_seen(&ring_, c);
            --under_way_;
            complete(w, result);
        }
    }
    void wait() {
        if (is_waiting_ || under_way_ == 0) return;
        is_waiting_ = true;
        readable_.async_wait(
            asio::posix::stream_descriptor::wait_read,
            [self = shared_from_this()](boost::system::error_code const& ec) {
                self->is_waiting_ = false;
                if (ec) return;
                self->take();
                self->wait();
            }
        );
    }

    asio::io_context& io_;
    io_uring ring_{};
    asio::posix::stream_descriptor readable_;
    std::size_t under_way_ = 0;
    bool is_open_ = false;
    bool has_fixed_buffer_ = false;
    bool is_waiting_ = false;
};

#else

class file_io::ring {
public:
    static std::shared_ptr<ring> open(asio::io_context&, std::span<std::byte>, std::size_t) {
        return {};
    }
    asio::awaitable<int> start(bool, int, std::uint64_t, std::span<std::byte>) {
        co_return -EOPNOTSUPP;
    }
    void close() {}
};

#endif

file_io::file_io(
    asio::io_context& io, disk& threads, std::span<std::byte> memory, std::size_t transfers_max
)
    : threads_{threads},
      ring_{ring::open(io, memory, transfers_max)} {}

file_io::~file_io() {
    if (ring_ != nullptr) ring_->close();
}

asio::awaitable<int> file_io::read(int file, std::uint64_t offset, std::span<std::byte> into) {
    return transfer(false, file, offset, into);
}

asio::awaitable<int> file_io::write(
    int file, std::uint64_t offset, std::span<std::byte const> from
) {
    // Not written to.
    return transfer(true, file, offset, {const_cast<std::byte*>(from.data()), from.size()});
}

asio::awaitable<int> file_io::part(
    bool is_write, int file, std::uint64_t offset, std::span<std::byte> bytes
) {
    if (ring_ != nullptr) {
        int const n = co_await ring_->start(is_write, file, offset, bytes);
        // Files without, and a ring that is full.
        if (n != -EOPNOTSUPP && n != -EAGAIN) co_return n;
    }
    co_return co_await threads_.run([=] {
        auto const at = static_cast<off_t>(offset);
        ssize_t const n = is_write ? ::pwrite(file, bytes.data(), bytes.size(), at)
                                   : ::pread(file, bytes.data(), bytes.size(), at);
        return n < 0 ? -errno : static_cast<int>(n);
    });
}

asio::awaitable<int> file_io::transfer(
    bool is_write, int file, std::uint64_t offset, std::span<std::byte> bytes
) {
    while (!bytes.empty()) {
        int const n = co_await part(is_write, file, offset, bytes);
        if (n == -EINTR) continue;
        if (n < 0) co_return -n;
        if (n == 0) co_return is_write ? EIO : error_source_changed;
        bytes = bytes.subspan(static_cast<std::size_t>(n));
        offset += static_cast<std::uint64_t>(n);
    }
    co_return 0;
}

}  // namespace copy
