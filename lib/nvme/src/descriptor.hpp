// descriptor.hpp — an owned file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace rcverbs::nvme::detail {

class descriptor {
public:
    explicit descriptor(int fd) noexcept : fd_{fd} {}
    descriptor(descriptor&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
    descriptor& operator=(descriptor&& other) noexcept {
        descriptor old{std::exchange(fd_, std::exchange(other.fd_, -1))};
        return *this;
    }
    ~descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const noexcept { return fd_; }

private:
    int fd_;
};

}  // namespace rcverbs::nvme::detail
