#include <rcverbs/nvme/file_store.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <utility>

#include "error/option_check.hpp"
#include "file_engine.hpp"

namespace rcverbs::nvme {

namespace detail {

namespace {

class descriptor {
public:
    explicit descriptor(int fd) noexcept : fd_{fd} {}
    descriptor(descriptor const&) = delete;
    descriptor& operator=(descriptor const&) = delete;
    ~descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const noexcept { return fd_; }

private:
    int const fd_;
};

}  // namespace

class file_store_core {
public:
    file_store_core(std::filesystem::path const& path, file_store_options const& options)
        : options_{options},
          file_{::open(path.c_str(), (options.is_read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC)} {
        if (file_.get() >= 0) return;
        throw boost::system::system_error{errno, boost::system::system_category(), path.string()};
    }

    store_geometry geometry() const {
        off_t const end = ::lseek(file_.get(), 0, SEEK_END);  // of a block device, too
        std::uint64_t const size = end < 0 ? 0 : static_cast<std::uint64_t>(end);
        return {
            size / options_.block_bytes * options_.block_bytes,
            options_.block_bytes,
            true,
            options_.is_read_only};
    }

    void make_engine() {
        file_in_use const file{file_.get(), options_.is_read_only};
        if (options_.method != file_method::threads) {
            try {
                engine_ = make_file_ring(file);
                method_ = file_method::io_uring;
                return;
            } catch (boost::system::system_error const&) {
                if (options_.method == file_method::io_uring) throw;
            }
        }
        engine_ = make_file_threads(file, options_.threads);
        method_ = file_method::threads;
    }

    file_method method() const noexcept { return method_; }
    void start(store_request& r) { engine_->start(r); }

private:
    file_store_options const options_;
    descriptor const file_;
    file_method method_ = file_method::automatic;
    std::unique_ptr<file_engine> engine_;
};

}  // namespace detail

namespace {

std::unique_ptr<detail::file_store_core> opened(
    std::filesystem::path const& path, file_store_options const& options
) {
    rcverbs::detail::option_check check{"file_store_options"};
    check.within("block_bytes", options.block_bytes, 512, 4096)
        .that(std::has_single_bit(options.block_bytes), "block_bytes", " is no power of two")
        .within("threads", options.threads, 1, 64);
    rcverbs::detail::throw_if_refused(check.problem());
    auto made = std::make_unique<detail::file_store_core>(path, options);
    check.that(made->geometry().size_bytes > 0, "block_bytes", " is larger than the file");
    rcverbs::detail::throw_if_refused(check.problem());
    made->make_engine();
    return made;
}

}  // namespace

file_store::file_store(std::filesystem::path const& path, file_store_options const& options)
    : core_{opened(path, options)} {}

file_store::~file_store() = default;

store_geometry file_store::geometry() const { return core_->geometry(); }

file_method file_store::method() const noexcept { return core_->method(); }

void file_store::start(store_request& request) { core_->start(request); }

}  // namespace rcverbs::nvme
