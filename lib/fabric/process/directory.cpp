#include "directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <system_error>

namespace rcverbs::fabric::detail {

namespace {

[[noreturn]] void fail(std::string const& what) {
    throw std::runtime_error{what + ": " + std::generic_category().message(errno)};
}

// Locks of an open file, which child processes inherit with it. Source: fcntl(2), "Open file description locks".
bool lock(descriptor const& file, short how) noexcept {
    struct flock all {};
    all.l_type = how;
    return ::fcntl(file.get(), F_OFD_SETLK, &all) == 0;
}

bool is_locked(descriptor const& file) noexcept {
    struct flock all {};
    all.l_type = F_WRLCK;
    return ::fcntl(file.get(), F_OFD_GETLK, &all) == 0 && all.l_type != F_UNLCK;
}

// Of a locked file.
constexpr std::size_t text_bytes = 96;

// Overwrites the file with a number and a word.
void store(descriptor const& file, std::uint64_t number, std::string_view word = "") noexcept {
    char text[text_bytes];
    int const size = std::snprintf(
        text,
        sizeof text,
        "%llu %.*s\n",
        static_cast<unsigned long long>(number),
        static_cast<int>(word.size()),
        word.data()
    );
    static_cast<void>(::pwrite(file.get(), text, static_cast<std::size_t>(size), 0));
    static_cast<void>(::ftruncate(file.get(), size));
}

std::string load(descriptor const& file) {
    char text[text_bytes];
    ssize_t const size = ::pread(file.get(), text, sizeof text, 0);
    return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string{};
}

std::uint64_t load_number(descriptor const& file) {
    std::string const text = load(file);
    std::uint64_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number;
}

// $XDG_RUNTIME_DIR/rcverbs, or a directory of the user's in /tmp.
std::string base() {
    char const* const runtime = std::getenv("XDG_RUNTIME_DIR");
    if (runtime != nullptr && *runtime == '/') return std::string{runtime} + "/rcverbs";
    return "/tmp/rcverbs-" + std::to_string(::geteuid());
}

void make(std::string const& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail(path);
}

void check(std::string const& path) {
    struct stat s {};
    if (::lstat(path.c_str(), &s) != 0) fail(path);
    if (!S_ISDIR(s.st_mode) || s.st_uid != ::geteuid() || (s.st_mode & 077) != 0)
        throw std::runtime_error{path + ": not a directory of this user with mode 0700"};
}

descriptor make_socket() {
    return descriptor{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
}

sockaddr_un socket_address(std::string const& path) {
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    if (path.size() >= sizeof a.sun_path)
        throw std::runtime_error{path + ": too long for a socket"};
    std::memcpy(a.sun_path, path.c_str(), path.size() + 1);
    return a;
}

constexpr std::uint32_t generation_max = (1U << 24U) - 1;
constexpr std::string_view listening = "listening";
constexpr std::string_view remote = "remote";
constexpr char const* bridge_lock = "bridge.lock";
constexpr char const* stepper_lock = "stepper.lock";

std::string name_of(std::uint32_t node, std::uint32_t slot) {
    return std::to_string(node) + '.' + std::to_string(slot);
}

std::string port_name(std::uint32_t node, std::uint16_t port) {
    return std::to_string(node) + ".port-" + std::to_string(port);
}

}  // namespace

descriptor::~descriptor() {
    if (fd_ >= 0) ::close(fd_);
}

descriptor listen_at(std::string const& path) {
    ::unlink(path.c_str());
    descriptor socket = make_socket();
    sockaddr_un const a = socket_address(path);
    bool const listens =
        socket && ::bind(socket.get(), reinterpret_cast<sockaddr const*>(&a), sizeof a) == 0 &&
        ::listen(socket.get(), 4096) == 0;
    if (!listens) return {};
    return socket;
}

descriptor connect_to(std::string const& path) {
    descriptor socket = make_socket();
    sockaddr_un const a = socket_address(path);
    if (!socket || ::connect(socket.get(), reinterpret_cast<sockaddr const*>(&a), sizeof a) != 0)
        return {};
    return socket;
}

std::vector<std::string> addresses_of(std::uint32_t node, std::uint32_t device) {
    char v6[32];
    std::snprintf(v6, sizeof v6, "fd77::%x:%x", device, node);
    return {"10.77." + std::to_string(device) + '.' + std::to_string(node), v6};
}

bool is_network_name(std::string const& name) {
    return !name.empty() && name.size() <= 32 && name.front() != '.' &&
           name.find('/') == std::string::npos;
}

directory directory::of_network(std::string const& name) {
    if (!is_network_name(name))
        throw std::runtime_error{"'" + name + "' cannot be the name of a network"};
    make(base());
    check(base());
    std::string path = base() + '/' + name;
    make(path);
    return directory{std::move(path)};
}

std::optional<directory> directory::find_network(std::string const& name) {
    struct stat s {};
    bool const is_absent =
        is_network_name(name) && ::lstat((base() + '/' + name).c_str(), &s) != 0 && errno == ENOENT;
    if (is_absent) return std::nullopt;
    return of_network(name);
}

directory::directory(std::string path) : path_{std::move(path)} { check(path_); }

descriptor directory::open(std::string const& file, int flags) const {
    return descriptor{::open((path_ + '/' + file).c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600)};
}

// The bridge of a network that was joined, if there is one, and it does not end now. 0 if the other side does not
// answer.
std::optional<std::uint32_t> directory::ask_bridge() const {
    descriptor const socket = connect_to(bridge_path());
    if (!socket) return std::nullopt;
    constexpr int answer_timeout_ms = 10'000;
    pollfd p{socket.get(), POLLIN, 0};
    std::uint32_t node = 0;
    if (::poll(&p, 1, answer_timeout_ms) != 1) return 0;
    ssize_t const size = ::recv(socket.get(), &node, sizeof node, 0);
    if (size <= 0) return std::nullopt;
    return size == sizeof node && node <= nodes_max ? node : 0;
}

// A node that another machine has given: nobody has it here.
descriptor directory::hold_given_node(std::uint32_t node) const {
    descriptor file{
        ::open((path_ + '/' + std::to_string(node)).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0600)};
    if (!file || !lock(file, F_RDLCK)) fail(path_);
    static_cast<void>(::ftruncate(file.get(), 0));
    return file;
}

std::optional<directory::member> directory::take_given_node() const {
    auto const given = ask_bridge();
    if (!given) return std::nullopt;
    if (*given == 0) throw std::runtime_error{path_ + ": the other machine gives no node"};
    descriptor file = hold_given_node(*given);
    return member{*given, std::move(file)};
}

directory::member directory::take_node() const {
    if (auto given = take_given_node()) return *std::move(given);
    for (std::uint32_t node = 1; node <= nodes_max; ++node) {
        // Inherited: it holds the node while any process that was started for it lives.
        descriptor file{::open(
            (path_ + '/' + std::to_string(node)).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0600
        )};
        if (!file) fail(path_);
        if (!lock(file, F_WRLCK)) continue;
        static_cast<void>(::ftruncate(file.get(), 0));  // where a node of another machine was
        if (lock(file, F_RDLCK)) return {node, std::move(file)};
    }
    throw std::runtime_error{path_ + ": all " + std::to_string(nodes_max) + " nodes are in use"};
}

descriptor directory::hold_node(std::uint32_t node) const {
    // Inherited, too.
    descriptor file{
        ::open((path_ + '/' + std::to_string(node)).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0600)};
    if (!file) fail(path_);
    bool const is_used = is_locked(file);
    if (is_used && load(file).find(remote) != std::string::npos)
        throw std::runtime_error{"node " + std::to_string(node) + " is on another machine"};
    if (!is_used && has_bridge())
        throw std::runtime_error{
            "node " + std::to_string(node) + " is not in use; another machine gives the numbers"};
    if (!lock(file, F_RDLCK)) fail(path_);
    return file;
}

descriptor directory::join_node(std::uint32_t node) const {
    descriptor file = open(std::to_string(node), O_RDWR | O_CREAT);
    if (file && lock(file, F_RDLCK)) return file;
    return {};
}

descriptor directory::hold_remote_node(std::uint32_t node) const {
    descriptor file = join_node(node);
    if (file) store(file, 0, remote);
    return file;
}

descriptor directory::take_bridge() const {
    descriptor file = open(bridge_lock, O_RDWR | O_CREAT);
    if (file && lock(file, F_WRLCK)) return file;
    return {};
}

bool directory::has_bridge() const {
    descriptor const file = open(bridge_lock, O_RDONLY);
    return file && is_locked(file);
}

descriptor directory::take_stepper(std::uint64_t seed) const {
    descriptor file = open(stepper_lock, O_RDWR | O_CREAT);
    if (!file || !lock(file, F_WRLCK)) return {};
    store(file, seed);
    return file;
}

std::optional<std::uint64_t> directory::stepper_seed() const {
    descriptor const file = open(stepper_lock, O_RDONLY);
    if (!file || !is_locked(file)) return std::nullopt;
    return load_number(file);
}

directory::member directory::take_slot(std::uint32_t node) const {
    for (std::uint32_t slot = 1; slot <= slots_max; ++slot) {
        descriptor file = open(name_of(node, slot) + ".lock", O_RDWR | O_CREAT);
        if (!file) fail(path_);
        if (!lock(file, F_WRLCK)) continue;
        std::uint32_t const generation = std::random_device{}() % generation_max + 1;
        store(file, static_cast<std::uint64_t>(::getpid()), std::to_string(generation));
        return {slot, std::move(file), generation};
    }
    throw std::runtime_error{
        path_ + ": node " + std::to_string(node) + " has " + std::to_string(slots_max) +
        " processes"};
}

descriptor directory::take_remote_slot(std::uint32_t node, std::uint32_t slot) const {
    descriptor file = open(name_of(node, slot) + ".lock", O_RDWR | O_CREAT);
    if (!file || !lock(file, F_WRLCK)) return {};
    store(file, static_cast<std::uint64_t>(::getpid()), remote);
    return file;
}

descriptor directory::take_port(std::uint32_t node, std::uint32_t slot, std::uint16_t port) const {
    descriptor file = open(port_name(node, port), O_RDWR | O_CREAT);
    if (!file || !lock(file, F_WRLCK)) return {};
    store(file, slot);
    return file;
}

void directory::show_port(descriptor const& port, std::uint32_t slot) const noexcept {
    store(port, slot, listening);
}

std::optional<std::uint32_t> directory::find_port(std::uint32_t node, std::uint16_t port) const {
    descriptor const file = open(port_name(node, port), O_RDONLY);
    if (!file || !is_locked(file)) return std::nullopt;
    auto const slot = static_cast<std::uint32_t>(load_number(file));
    if (slot == 0 || slot > slots_max) return std::nullopt;
    return slot;
}

std::vector<std::uint32_t> directory::numbers(
    std::string const& prefix, std::string const& suffix, std::string_view word
) const {
    std::vector<std::uint32_t> found;
    std::unique_ptr<DIR, int (*)(DIR*)> const list{::opendir(path_.c_str()), ::closedir};
    if (list == nullptr) return found;
    while (dirent const* const entry = ::readdir(list.get())) {
        std::string const name = entry->d_name;
        if (!name.starts_with(prefix)) continue;
        std::uint32_t number = 0;
        char const* const end = name.data() + name.size();
        auto const [rest, error] = std::from_chars(name.data() + prefix.size(), end, number);
        if (error != std::errc{} || std::string(rest, end) != suffix) continue;
        descriptor const file = open(name, O_RDONLY);
        if (!file || !is_locked(file)) continue;
        if (load(file).find(word) != std::string::npos) found.push_back(number);
    }
    std::ranges::sort(found);
    return found;
}

std::vector<std::uint32_t> directory::nodes() const { return numbers("", ""); }

std::vector<std::uint32_t> directory::slots(std::uint32_t node) const {
    return numbers(std::to_string(node) + '.', ".lock");
}

std::vector<std::uint32_t> directory::ports(std::uint32_t node) const {
    return numbers(std::to_string(node) + ".port-", "", listening);
}

// None if the slot is free.
descriptor directory::open_slot(std::uint32_t node, std::uint32_t slot) const {
    descriptor file = open(name_of(node, slot) + ".lock", O_RDONLY);
    if (!file || !is_locked(file)) return {};
    return file;
}

pid_t directory::process_of(std::uint32_t node, std::uint32_t slot) const {
    descriptor const file = open_slot(node, slot);
    if (!file || load(file).find(remote) != std::string::npos) return 0;
    return static_cast<pid_t>(load_number(file));
}

void directory::show_faults(member const& slot, std::string const& faults) const noexcept {
    store(
        slot.lock,
        static_cast<std::uint64_t>(::getpid()),
        std::to_string(slot.generation) + ' ' + faults
    );
}

std::string directory::faults_of(std::uint32_t node, std::uint32_t slot) const {
    descriptor const file = open_slot(node, slot);
    std::string const text = file ? load(file) : std::string{};
    // Behind the process and the generation.
    std::size_t const first = text.find(' ');
    std::size_t const second = first == text.npos ? text.npos : text.find(' ', first + 1);
    if (second == text.npos) return {};
    return text.substr(second + 1, text.find('\n') - second - 1);
}

std::uint32_t directory::generation_of(std::uint32_t node, std::uint32_t slot) const {
    descriptor const file = open_slot(node, slot);
    std::string const text = file ? load(file) : std::string{};
    std::size_t const word = text.find(' ');
    std::uint32_t generation = 0;
    if (word != std::string::npos)
        std::from_chars(text.data() + word + 1, text.data() + text.size(), generation);
    return generation;
}

bool directory::is_end_of(int socket, std::uint32_t node, std::uint32_t slot) const {
    ucred c{};
    socklen_t size = sizeof c;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &c, &size) != 0) return false;
    if (c.uid != ::geteuid()) return false;
    // 0: of a container, whose process numbers are not known here.
    if (c.pid == 0) return true;
    descriptor const file = open_slot(node, slot);
    return file && static_cast<pid_t>(load_number(file)) == c.pid;
}

std::string directory::socket_path(std::uint32_t node, std::uint32_t slot) const {
    return path_ + '/' + name_of(node, slot);
}

void directory::remove_socket(std::uint32_t node, std::uint32_t slot) const noexcept {
    // Files that are locked stay: another process may have opened one to lock it.
    ::unlink(socket_path(node, slot).c_str());
}

}  // namespace rcverbs::fabric::detail
