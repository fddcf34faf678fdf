// file_claim.hpp — the right to use a file or a block device alone.
#pragma once

#include <filesystem>

#include "descriptor.hpp"

namespace rcverbs::nvme::detail {

/// Holds an exclusive open of a block device, or a lock on a file: a read lock if the file is only
/// read, so that several may. Locks are of the open file description (OFD locks), so two claims of
/// one process exclude each other, too.
class file_claim {
public:
    /// @throws boost::system::system_error: EBUSY if the device is mounted or in use, EAGAIN if the
    ///         file is locked; errno of open(2) and fcntl(2).
    file_claim(std::filesystem::path const& path, bool is_read_only);

private:
    descriptor const file_;
};

}  // namespace rcverbs::nvme::detail
