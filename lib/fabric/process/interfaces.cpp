// getifaddrs(3) with the node's addresses: programs look there for the addresses of their devices.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "directory.hpp"
#include "settings.hpp"

namespace {

using rcverbs::fabric::detail::settings;

template <class Function>
Function next(char const* name) noexcept {
    return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

// An interface of this node. Those of the machine follow the last one.
struct interface : ifaddrs {
    sockaddr_storage address{};
    sockaddr_storage mask{};
    std::string name;
    ifaddrs* machine = nullptr;  // the list of the C library

    interface(std::string device, std::string const& text) : ifaddrs{}, name{std::move(device)} {
        ifa_name = name.data();
        ifa_flags = IFF_UP | IFF_RUNNING | IFF_MULTICAST;
        ifa_addr = reinterpret_cast<sockaddr*>(&address);
        ifa_netmask = reinterpret_cast<sockaddr*>(&mask);
        auto& v4 = reinterpret_cast<sockaddr_in&>(address);
        auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
        bool const is_v4 = ::inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1;
        if (!is_v4) ::inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr);
        address.ss_family = is_v4 ? AF_INET : AF_INET6;
        mask.ss_family = address.ss_family;
        void* const bytes = is_v4
                                ? static_cast<void*>(&reinterpret_cast<sockaddr_in&>(mask).sin_addr)
                                : &reinterpret_cast<sockaddr_in6&>(mask).sin6_addr;
        std::memset(bytes, 0xff, is_v4 ? 3 : 8);
    }
};

// The first interface of each list that was given out, so that it can be told from the C library's.
struct given_lists {
    std::mutex mutex;
    std::vector<ifaddrs*> first;
};
given_lists& given() {
    static auto* const lists = new given_lists;  // never destroyed: programs free lists at any time
    return *lists;
}

}  // namespace

extern "C" {

int getifaddrs(ifaddrs** out) noexcept {
    static auto const real = next<int (*)(ifaddrs**)>("getifaddrs");
    int const result = real(out);
    if (result != 0) return result;
    try {
        settings const s = settings::of_environment();
        if (s.node == 0) return 0;  // not known before the program uses RDMA
        interface* first = nullptr;
        ifaddrs** end = nullptr;
        for (std::uint32_t i = 0; i < s.devices; ++i) {
            for (std::string const& text : rcverbs::fabric::detail::addresses_of(s.node, i)) {
                auto made = std::make_unique<interface>("fab" + std::to_string(i), text);
                made->machine = *out;
                if (first == nullptr) first = made.get();
                if (end != nullptr) *end = made.get();
                end = &made.release()->ifa_next;
            }
        }
        *end = *out;
        std::lock_guard const lock{given().mutex};
        given().first.push_back(first);
        *out = first;
    } catch (std::exception const&) {
        return 0;  // the machine's alone
    }
    return 0;
}

void freeifaddrs(ifaddrs* list) noexcept {
    static auto const real = next<void (*)(ifaddrs*)>("freeifaddrs");
    {
        std::lock_guard const lock{given().mutex};
        if (std::erase(given().first, list) == 0) return real(list);
    }
    ifaddrs* const machine = static_cast<interface*>(list)->machine;
    while (list != machine) delete static_cast<interface*>(std::exchange(list, list->ifa_next));
    real(machine);
}
}
