// stat(2) and access(2) of the devices' files: some programs look whether they may open /dev/infiniband/uverbsN before they
// ask libibverbs to. The file of a device of the fabric looks like /dev/null, a character device that everybody may open.
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

namespace {

// As in ibv_device::dev_name.
constexpr std::string_view prefix = "/dev/infiniband/uverbs-fab";

char const* file_for(char const* path) noexcept {
    bool const is_device = path != nullptr && std::string_view{path}.starts_with(prefix);
    return is_device ? "/dev/null" : path;
}

template <class Function>
Function next(char const* name) noexcept {
    return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int stat(char const* path, struct stat* out) {
    static auto const real = next<int (*)(char const*, struct stat*)>("stat");
    return real(file_for(path), out);
}

int access(char const* path, int mode) {
    static auto const real = next<int (*)(char const*, int)>("access");
    return real(file_for(path), mode);
}
}
