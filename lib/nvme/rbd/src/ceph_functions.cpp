#include "ceph_functions.hpp"

#include <dlfcn.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>

#include "error/detailed_error.hpp"

namespace rcverbs::nvme::detail {

namespace {

[[noreturn]] void refuse(std::string const& text) {
    char const* const why = ::dlerror();
    throw rcverbs::detail::detailed_error{
        error_code{ELIBACC, boost::system::system_category()},
        text + (why != nullptr ? std::string{": "} + why : std::string{})};
}

// Never unloaded: their threads may run at the end of the process.
void* load(char const* library, char const* package) {
    void* const made = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (made == nullptr)
        refuse(std::string{library} + " is missing (Debian's package " + package + ")");
    return made;
}

template <class Function>
void find(void* library, char const* name, Function& to) {
    to = reinterpret_cast<Function>(::dlsym(library, name));
    if (to == nullptr) refuse(std::string{"this Ceph is too old: no "} + name);
}

ceph_functions load_all() {
    ceph_functions all;
    void* const rados = load("librados.so.2", "librados2");
    void* const rbd = load("librbd.so.1", "librbd1");
    // NOLINTNEXTLINE(cppcoreguidelines-macro-usage)
#define RCVERBS_FIND(name) find(library, #name, all.name);
    void* library = rados;
    RCVERBS_RADOS_FUNCTIONS(RCVERBS_FIND)
    library = rbd;
    RCVERBS_RBD_FUNCTIONS(RCVERBS_FIND)
#undef RCVERBS_FIND
    return all;
}

// Never destroyed, as stores may outlive it.
struct ceph_uses {
    std::mutex mutex;
    std::condition_variable changed;
    unsigned open = 0;
    unsigned closing = 0;
    bool is_over = false;
};
ceph_uses& uses() {
    static auto* const all = new ceph_uses;
    return *all;
}

// What is made after the libraries were loaded is destroyed before their objects.
struct at_exit {
    at_exit() = default;
    at_exit(at_exit const&) = delete;
    at_exit& operator=(at_exit const&) = delete;
    ~at_exit() {
        ceph_uses& u = uses();
        std::unique_lock lock{u.mutex};
        u.changed.wait_for(lock, std::chrono::seconds{5}, [&u] { return u.open == 0; });
        u.is_over = true;
        u.changed.wait(lock, [&u] { return u.closing == 0; });
    }
};

}  // namespace

ceph_functions const& ceph() {
    static ceph_functions const all = load_all();
    static at_exit const last;
    return all;
}

ceph_use::ceph_use() {
    ceph();
    ceph_uses& u = uses();
    std::lock_guard const lock{u.mutex};
    ++u.open;
}
bool ceph_use::begin_close() noexcept {
    ceph_uses& u = uses();
    std::lock_guard const lock{u.mutex};
    if (u.is_over || !std::exchange(is_open_, false)) return false;
    --u.open;
    ++u.closing;
    is_closing_ = true;
    u.changed.notify_all();
    return true;
}
void ceph_use::end() noexcept {
    ceph_uses& u = uses();
    std::lock_guard const lock{u.mutex};
    if (std::exchange(is_open_, false)) --u.open;
    if (std::exchange(is_closing_, false)) --u.closing;
    u.changed.notify_all();
}

}  // namespace rcverbs::nvme::detail
