#include "identity.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/random_generator.hpp>
#include <boost/uuid/string_generator.hpp>
#include <boost/uuid/uuid_io.hpp>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace rcverbs::nvme::detail {

namespace {

namespace fs = std::filesystem;

constexpr char const* uuid_attribute = "user.rcverbs.uuid";
constexpr char const* block_bytes_attribute = "user.rcverbs.block_bytes";

uuid_bytes to_bytes(boost::uuids::uuid const& id) {
    uuid_bytes bytes{};
    std::memcpy(bytes.data(), id.data, bytes.size());
    return bytes;
}

boost::uuids::uuid to_uuid(uuid_bytes const& bytes) {
    boost::uuids::uuid id{};
    std::memcpy(id.data, bytes.data(), bytes.size());
    return id;
}

// The first line of a file, without blanks around it; empty if there is none.
std::string first_line(fs::path const& file) {
    std::ifstream in{file};
    std::string line;
    std::getline(in, line);
    auto const is_blank = [](unsigned char c) { return std::isspace(c) != 0; };
    line.erase(std::find_if_not(line.rbegin(), line.rend(), is_blank).base(), line.end());
    line.erase(line.begin(), std::ranges::find_if_not(line, is_blank));
    return line;
}

// The handle of a file: its inode and generation, as its file system writes them. Other file systems
// have none: then the inode and the time of its birth.
std::string file_handle_text(int fd) {
    alignas(file_handle) std::array<std::byte, sizeof(file_handle) + MAX_HANDLE_SZ> memory{};
    auto* const handle = reinterpret_cast<file_handle*>(memory.data());
    handle->handle_bytes = MAX_HANDLE_SZ;
    int mount = 0;
    if (::name_to_handle_at(fd, "", handle, &mount, AT_EMPTY_PATH) == 0) {
        auto const bytes =
            std::span{memory}.subspan(offsetof(file_handle, f_handle), handle->handle_bytes);
        return std::to_string(handle->handle_type) + ':' + hexadecimal(bytes);
    }
    struct statx of {};
    if (::statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &of) != 0) return {};
    if ((of.stx_mask & STATX_BTIME) == 0) return {};
    return "born:" + std::to_string(of.stx_ino) + ':' + std::to_string(of.stx_btime.tv_sec) + '.' +
           std::to_string(of.stx_btime.tv_nsec);
}

// The file system of a file, if its number says so: a number derived from its own UUID. That of other
// file systems is the number of their device.
std::string file_system_text(int fd) {
    constexpr auto ext4 = 0xef53;
    constexpr auto btrfs = 0x9123683e;
    constexpr auto zfs = 0x2fc12fc1;
    struct statfs on {};
    bool const has_number =
        ::fstatfs(fd, &on) == 0 && (on.f_type == ext4 || on.f_type == btrfs || on.f_type == zfs);
    if (!has_number) return {};
    return hexadecimal(std::as_bytes(std::span{&on.f_fsid, 1}));
}

// What an attribute keeps: a value, the handle of its file, and for a UUID the machine.
struct kept_value {
    std::string value;
    std::string handle;
    std::string machine;
};

// Empty if the file has no such attribute.
kept_value read_kept(int fd, char const* name) {
    std::array<char, 512> text{};
    ssize_t const size = ::fgetxattr(fd, name, text.data(), text.size());
    if (size <= 0) return {};
    std::istringstream in{std::string{text.data(), static_cast<std::size_t>(size)}};
    kept_value kept;
    in >> kept.value >> kept.handle >> kept.machine;
    return kept;
}

std::optional<uuid_bytes> parse_uuid(std::string const& text) {
    try {
        return to_bytes(boost::uuids::string_generator{}(text));
    } catch (std::runtime_error const&) {
        return std::nullopt;
    }
}

file_identity identify_regular(int fd) {
    std::string const handle = file_handle_text(fd);
    if (handle.empty()) return {random_uuid(), false, {}};
    std::string const machine = machine_name();
    kept_value const kept = read_kept(fd, uuid_attribute);
    auto const of_file = kept.handle == handle ? parse_uuid(kept.value) : std::nullopt;
    if (of_file && kept.machine == machine) return {*of_file, true, {}};
    // The same whether it can be kept or not, so that a file that is only read at first stays the same
    // disk when it is written.
    uuid_bytes const id =
        machine.empty()
            ? random_uuid()
            : derived_uuid("file " + machine + ' ' + file_system_text(fd) + ' ' + handle);
    std::string value = boost::uuids::to_string(to_uuid(id)) + ' ' + handle;
    if (!machine.empty()) value += ' ' + machine;
    bool const is_writable = (::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
    // A copy has the attribute of its original, which may come back from a backup: it stays.
    bool const is_kept =
        is_writable &&
        ::fsetxattr(fd, uuid_attribute, value.data(), value.size(), XATTR_CREATE) == 0;
    return {id, is_kept || !machine.empty(), of_file};
}

// The name under which the device is in /dev/disk/by-id.
std::string by_id_name(dev_t device) {
    std::vector<std::string> names;
    std::error_code ec;
    for (auto const& link : fs::directory_iterator{"/dev/disk/by-id", ec}) {
        struct stat there {};
        if (::stat(link.path().c_str(), &there) != 0 || there.st_rdev != device) continue;
        names.push_back(link.path().filename());
    }
    return identifying_link(names);
}

file_identity identify_device(dev_t device) {
    fs::path const about =
        "/sys/dev/block/" + std::to_string(major(device)) + ':' + std::to_string(minor(device));
    // A partition is identified by its disk and its number.
    std::string const partition = first_line(about / "partition");
    fs::path const disk = partition.empty() ? about : about / "..";
    std::string const of_disk = ' ' + partition;
    std::string const machine = machine_name();
    std::string name;
    for (char const* const file : {"wwid", "device/wwid"}) {
        std::string const wwid = first_line(disk / file);
        bool const is_unique =
            wwid.starts_with("naa.") || wwid.starts_with("eui.") || wwid.starts_with("uuid.");
        std::string const disk_name = wwid + of_disk;
        if (is_unique) return {derived_uuid("device " + disk_name), true, {}};
        // Others repeat a vendor's serial number, which virtual disks of several machines share.
        if (!wwid.empty() && name.empty()) name = disk_name;
    }
    // What the device mapper maps has a UUID if LVM, multipath or cryptsetup made it.
    std::string const mapped = first_line(disk / "dm" / "uuid");
    if (name.empty() && !mapped.empty()) name = "dm " + mapped + of_disk;
    if (name.empty()) name = by_id_name(device);
    // The kernel's names and numbers of devices change from start to start.
    if (machine.empty() || name.empty()) return {random_uuid(), false, {}};
    return {derived_uuid("device " + machine + ' ' + name), true, {}};
}

}  // namespace

std::string machine_name() {
    std::string const id = first_line("/etc/machine-id");
    constexpr std::size_t digits = 32;
    auto const is_digit = [](unsigned char c) { return std::isxdigit(c) != 0; };
    if (id.size() != digits || !std::ranges::all_of(id, is_digit)) return {};
    return hexadecimal(derived_uuid("machine " + id));
}

uuid_bytes derived_uuid(std::string const& text) {
    // The name space of rcverbs: a random UUID.
    constexpr boost::uuids::uuid space{
        {0x8f,
         0x1c,
         0x0e,
         0x52,
         0x6a,
         0x0d,
         0x4b,
         0x3e,
         0x9d,
         0x55,
         0x21,
         0x7c,
         0xe4,
         0x90,
         0xb6,
         0x3a}};
    return to_bytes(boost::uuids::name_generator_sha1{space}(text));
}

uuid_bytes random_uuid() { return to_bytes(boost::uuids::random_generator{}()); }

std::string hexadecimal(std::span<std::byte const> bytes) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (std::byte const b : bytes) {
        text += digits[std::to_integer<unsigned>(b) >> 4];
        text += digits[std::to_integer<unsigned>(b) & 15];
    }
    return text;
}

std::string identifying_link(std::vector<std::string> const& names) {
    // The best first. Others come and go: udev adds some for what a host writes to the device.
    constexpr std::string_view prefixes[] = {
        "wwn-",
        "nvme-eui.",
        "nvme-uuid.",
        "nvme-nguid.",
        "dm-uuid-",
        "md-uuid-",
        "scsi-",
        "nvme-",
        "ata-",
        "virtio-",
        "usb-",
        "mmc-",
        "xen-",
        "ccw-"};
    for (std::string_view const prefix : prefixes) {
        std::string best;
        for (std::string const& name : names) {
            if (name.starts_with(prefix) && (best.empty() || name < best)) best = name;
        }
        if (!best.empty()) return best;
    }
    return {};
}

std::optional<std::uint32_t> kept_block_bytes(int fd) {
    kept_value const kept = read_kept(fd, block_bytes_attribute);
    if (kept.value.empty() || kept.handle != file_handle_text(fd)) return std::nullopt;
    std::string const& text = kept.value;
    if (text == "512" || text == "1024" || text == "2048" || text == "4096")
        return static_cast<std::uint32_t>(std::stoul(text));
    return std::nullopt;
}

void keep_block_bytes(int fd, std::uint32_t bytes) {
    struct stat here {};
    if (::fstat(fd, &here) != 0 || !S_ISREG(here.st_mode)) return;
    std::string const handle = file_handle_text(fd);
    if (handle.empty() || kept_block_bytes(fd) == bytes) return;
    std::string const value = std::to_string(bytes) + ' ' + handle;
    static_cast<void>(::fsetxattr(fd, block_bytes_attribute, value.data(), value.size(), 0));
}

file_identity identify_file(int fd) {
    struct stat here {};
    if (::fstat(fd, &here) != 0) return {random_uuid(), false, {}};
    return S_ISBLK(here.st_mode) ? identify_device(here.st_rdev) : identify_regular(fd);
}

}  // namespace rcverbs::nvme::detail
