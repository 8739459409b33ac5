// A queued copy whose end calls a function, in C++17: c++ -std=c++17 copy.cpp $(pkg-config --cflags --libs headway) -ldl
#include <dlfcn.h>
#include <headway.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(headway_status status)
{
    if (status != HEADWAY_STATUS_OK)
        throw std::runtime_error(headway_last_error());
}

struct Close {
    void operator()(headway_copier *copier) const { headway_copier_close(copier); }
    void operator()(headway_ticket *ticket) const { headway_ticket_free(ticket); }
};
using Copier = std::unique_ptr<headway_copier, Close>;
using Ticket = std::unique_ptr<headway_ticket, Close>;

template <typename Function> Function function(void *driver, const char *name)
{
    void *found = dlsym(driver, name);
    if (!found)
        throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<Function>(found);
}

void run()
{
    const char *named = std::getenv("HEADWAY_LIBCUDA");
    void *driver = dlopen(named ? named : "libcuda.so.1", RTLD_NOW);
    if (!driver)
        throw std::runtime_error(dlerror());
    int device = 0;
    void *context = nullptr, *stream = nullptr;
    unsigned long long there = 0;
    const std::size_t bytes = 3 * 1000 * 1000;
    if (function<int (*)(unsigned)>(driver, "cuInit")(0) || function<int (*)(int *, int)>(driver, "cuDeviceGet")(&device, 0) ||
        function<int (*)(void **, int)>(driver, "cuDevicePrimaryCtxRetain")(&context, device) ||
        function<int (*)(void *)>(driver, "cuCtxSetCurrent")(context) ||
        function<int (*)(unsigned long long *, std::size_t)>(driver, "cuMemAlloc_v2")(&there, bytes) ||
        function<int (*)(void **, unsigned)>(driver, "cuStreamCreate")(&stream, 1))
        throw std::runtime_error("the GPU cannot be used");
    std::vector<unsigned char> data(bytes), back(bytes);
    for (std::size_t at = 0; at < bytes; at++)
        data[at] = static_cast<unsigned char>(at * 3 + at / 257);

    headway_copier *opened = nullptr;
    check(headway_copier_open(0, nullptr, &opened));
    const Copier copier(opened);
    auto *address = reinterpret_cast<void *>(there);
    headway_ticket *queued = nullptr;
    check(headway_copy_async(copier.get(), address, data.data(), bytes, stream, &queued));
    const Ticket in(queued);
    check(headway_copy_async(copier.get(), back.data(), address, bytes, stream, &queued));
    const Ticket out(queued);
    std::promise<headway_status> ended;
    const auto then = [](headway_status status, void *promise) {
        static_cast<std::promise<headway_status> *>(promise)->set_value(status);
    };
    check(headway_ticket_when_done(out.get(), then, &ended));
    auto status = ended.get_future();
    if (status.wait_for(std::chrono::minutes(1)) != std::future_status::ready)
        throw std::runtime_error("the copy did not end within a minute");
    check(status.get());
    if (back != data)
        throw std::runtime_error("other bytes");
    std::printf("the same bytes\n");
}

} // namespace

int main()
{
    try {
        run();
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
