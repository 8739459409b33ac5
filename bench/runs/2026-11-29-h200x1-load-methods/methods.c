#define _GNU_SOURCE
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <immintrin.h>
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define CK(x) do{CUresult r_=(x); if(r_){const char*s=0;cuGetErrorName(r_,&s);fprintf(stderr,"%s:%d %s %s\n",#x,__LINE__,s?s:"",""); fail=1; }}while(0)
static int fail;
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec*1e-9;}
static double cpu(void){struct rusage u;getrusage(RUSAGE_SELF,&u);return u.ru_utime.tv_sec+u.ru_utime.tv_usec*1e-6+u.ru_stime.tv_sec+u.ru_stime.tv_usec*1e-6;}
static CUcontext ctx; static CUdeviceptr dev; static int fd; static size_t total, slot; static int method, nth; static atomic_size_t next_; static char *map; static char *slots; 
static void nt(char*d,const char*s,size_t n){
  for(size_t i=0;i<n;i+=128){_mm_prefetch(s+i+1024,_MM_HINT_NTA);_mm_prefetch(s+i+1088,_MM_HINT_NTA);
    __m256i a=_mm256_loadu_si256((void*)(s+i)),b=_mm256_loadu_si256((void*)(s+i+32)),c=_mm256_loadu_si256((void*)(s+i+64)),e=_mm256_loadu_si256((void*)(s+i+96));
    _mm256_stream_si256((void*)(d+i),a);_mm256_stream_si256((void*)(d+i+32),b);_mm256_stream_si256((void*)(d+i+64),c);_mm256_stream_si256((void*)(d+i+96),e);}
  _mm_sfence();}
static void pl(char*d,const char*s,size_t n){
  for(size_t i=0;i<n;i+=128){
    __m256i a=_mm256_loadu_si256((void*)(s+i)),b=_mm256_loadu_si256((void*)(s+i+32)),c=_mm256_loadu_si256((void*)(s+i+64)),e=_mm256_loadu_si256((void*)(s+i+96));
    _mm256_storeu_si256((void*)(d+i),a);_mm256_storeu_si256((void*)(d+i+32),b);_mm256_storeu_si256((void*)(d+i+64),c);_mm256_storeu_si256((void*)(d+i+96),e);}}
/* methods: 0 pread256K 1 map nt 2 map+populate nt 3 map+populate plain 4 register RO shared map 5 register RO private map 6 premapped nt (pages there) 7 pread whole slot 8 pread 64K*/
static void* work(void*p){
  long me=(long)p; cuCtxSetCurrent(ctx); CUstream s; CK(cuStreamCreate(&s,CU_STREAM_NON_BLOCKING)); CUevent e[2]; for(int i=0;i<2;i++)CK(cuEventCreate(&e[i],CU_EVENT_DISABLE_TIMING|CU_EVENT_BLOCKING_SYNC));
  char*mine=slots+me*2*slot; int k=0; char*reg[2]={0,0};
  for(;;){ size_t at=atomic_fetch_add(&next_,slot); if(at>=total)break; size_t n=total-at<slot?total-at:slot; char*d=mine+k*slot;
    CK(cuEventSynchronize(e[k])); 
    if(method==4||method==5){ if(reg[k]){CK(cuMemHostUnregister(reg[k]));reg[k]=0;}
      d=map+at; CUresult r=cuMemHostRegister(d,n,CU_MEMHOSTREGISTER_READ_ONLY|CU_MEMHOSTREGISTER_PORTABLE); if(r){CK(r);break;} reg[k]=d; }
    else if(method==0||method==7||method==8){ size_t q=method==0?262144:method==8?65536:n; for(size_t o=0;o<n;o+=q){ size_t m=n-o<q?n-o:q; if(pread(fd,d+o,m,at+o)!=(ssize_t)m){perror("pread");break;} } }
    else { if(method==2||method==3){ for(size_t o=0;o<n;o+=262144){size_t m=n-o<262144?n-o:262144; madvise(map+at+o,m,MADV_POPULATE_READ); (method==3?pl:nt)(d+o,map+at+o,m);} } else nt(d,map+at,n); }
    CK(cuMemcpyHtoDAsync(dev+at,d,n,s)); CK(cuEventRecord(e[k],s)); k^=1; if(fail)break; }
  CK(cuStreamSynchronize(s)); for(int i=0;i<2;i++){ if(reg[i])CK(cuMemHostUnregister(reg[i])); cuEventDestroy(e[i]);} cuStreamDestroy(s); return 0;}
int main(int c,char**v){
  total=(size_t)(c>1?atof(v[1])*(1<<30):8ul<<30)/ (8<<20)*(8<<20); CUdevice g; CK(cuInit(0));CK(cuDeviceGet(&g,0));CK(cuDevicePrimaryCtxRetain(&ctx,g));cuCtxSetCurrent(ctx);
  int ro=0; cuDeviceGetAttribute(&ro,CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,g); printf("# ro register %d\n",ro);
  CK(cuMemAlloc(&dev,total)); fd=open("/dev/shm/probe.bin",O_RDWR|O_CREAT,0600); if(ftruncate(fd,total))return 1; char*w=mmap(0,total,PROT_READ|PROT_WRITE,MAP_SHARED,fd,0); for(size_t i=0;i<total;i+=8)*(size_t*)(w+i)=i*2654435761u; munmap(w,total);
  close(fd); fd=open("/dev/shm/probe.bin",O_RDONLY);
  CK(cuMemHostAlloc((void**)&slots,16ul*2*(16<<20),CU_MEMHOSTALLOC_PORTABLE));
  static const char*names[]={"pread256K","map-nt","map-pop-nt","map-pop-plain","reg-shared","reg-private","present-nt","pread-slot","pread64K"};
  struct{int m;size_t s;int t;} set[400];int n=0;
  int ms[]={0,8,2,3,1,6}; size_t ss[]={1<<20,4<<20}; int ts[]={4,8};
  for(int a=0;a<6;a++)for(int b=0;b<2;b++)for(int d=0;d<2;d++){set[n].m=ms[a];set[n].s=ss[b];set[n++].t=ts[d];}
  for(int a=4;a<=5;a++)for(int b=0;b<3;b++)for(int d=0;d<4;d++){set[n].m=a;set[n].s=(size_t)(b==0?4:b==1?16:64)<<20;set[n++].t=1<<d;}
  set[n].m=7;set[n].s=256<<10;set[n++].t=8; set[n].m=0;set[n].s=512<<10;set[n++].t=8; set[n].m=3;set[n].s=512<<10;set[n++].t=8; set[n].m=0;set[n].s=4<<20;set[n++].t=6;set[n].m=2;set[n].s=4<<20;set[n++].t=6;set[n].m=0;set[n].s=4<<20;set[n++].t=12;
  printf("method slot_kib threads round GBs cpus map_ms unmap_ms\n");
  for(int r=0;r<2;r++)for(int i=0;i<n;i++){ method=set[i].m;slot=set[i].s;nth=set[i].t;atomic_store(&next_,0);fail=0;map=0;
    if(method==6){map=mmap(0,total,PROT_READ,MAP_SHARED,fd,0);madvise(map,total,MADV_POPULATE_READ);}
    double t0=now(),c0=cpu(); double ma=0,ua=0;
    if(!map&&method>=1&&method<=5)map=mmap(0,total,PROT_READ,method==5?MAP_PRIVATE:MAP_SHARED,fd,0); ma=now()-t0;
    pthread_t th[16];for(long j=0;j<nth;j++)pthread_create(&th[j],0,work,(void*)j);for(int j=0;j<nth;j++)pthread_join(th[j],0);
    double t1=now();if(map&&method!=6)munmap(map,total);ua=now()-t1;double t2=now();double cc=cpu()-c0;if(map&&method==6)munmap(map,total);
    printf("%s %zu %d %d %.2f %.2f %.1f %.1f%s\n",names[method],slot>>10,nth,r,total/(t2-t0)/1e9,cc/(t2-t0),ma*1e3,ua*1e3,fail?" FAIL":"");fflush(stdout);
    if(r==0&&!fail){ size_t x; int bad=0; for(size_t q=0;q<total;q+=(total/64)/8*8){cuMemcpyDtoH(&x,dev+q,8);if(x!=(size_t)q*2654435761u)bad++;} if(bad)printf("BAD %d\n",bad); cuMemsetD8(dev,0,total);cuCtxSynchronize(); }
  }
  unlink("/dev/shm/probe.bin");return 0;}
