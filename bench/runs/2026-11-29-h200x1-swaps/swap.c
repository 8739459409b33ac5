/* A token loop beside a swap of blocks out of the GPU, in one program: swap BLOCK_KIB SECONDS */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
typedef int R; typedef uint64_t P; typedef void *S;
static R (*out)(void*,P,size_t,S),(*in)(P,const void*,size_t),(*syncs)(S),(*mk)(S*,unsigned),(*cur)(size_t),(*d8)(P,unsigned char,size_t,S);
static size_t ctx, block; static double seconds; static volatile int over; static double moved, took; static P dev; static unsigned char*host; 
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec*1e-9;}
static void ok(R r,const char*w){if(r){printf("%s: %d\n",w,r);exit(1);}}
#define BLOCKS 64
static void*swap(void*a){(void)a;ok(cur(ctx),"cur");S s;ok(mk(&s,1),"stream");double t=now();while(!over){for(int i=0;i<BLOCKS;i++)ok(out(host+i*block,dev+i*block,block,s),"block");ok(syncs(s),"sync");moved+=BLOCKS*block;}took=now()-t;return 0;}
static int cmp(const void*a,const void*b){double x=*(double*)a,y=*(double*)b;return x<y?-1:x>y;}
int main(int c,char**v){block=(size_t)atoi(v[1])<<10;seconds=atof(v[2]);int only=c>3;
 void*d=dlopen("libcuda.so.1",RTLD_NOW);
#define F(n) dlsym(d,n)
 R(*init)(unsigned)=F("cuInit"),(*retain)(size_t*,int)=F("cuDevicePrimaryCtxRetain"),(*alloc)(P*,size_t)=F("cuMemAlloc_v2"),(*ha)(void**,size_t,unsigned)=F("cuMemHostAlloc");
 cur=F("cuCtxSetCurrent");out=F("cuMemcpyDtoHAsync_v2");in=F("cuMemcpyHtoD_v2");syncs=F("cuStreamSynchronize");mk=F("cuStreamCreate");d8=F("cuMemsetD8Async");
 ok(init(0),"init");ok(retain(&ctx,0),"retain");ok(cur(ctx),"cur");ok(alloc(&dev,BLOCKS*block+65536),"alloc");ok(ha((void**)&host,BLOCKS*block+65536,0),"host");
 unsigned char*src=malloc(BLOCKS*block);for(size_t i=0;i<BLOCKS*block;i++)src[i]=i*7+i/251;ok(in(dev,src,BLOCKS*block),"in");
 S s;ok(mk(&s,1),"stream");P tok=dev+BLOCKS*block;unsigned char*res=host+BLOCKS*block;
 pthread_t t;if(only<1||v[3][0]!='i')pthread_create(&t,0,swap,0);
 static double x[2000000],pw[2000000],pc[2000000],pv[2000000];size_t wb=c>4?(size_t)atoi(v[4])<<10:4096;P big=0;if(wb>4096)ok(alloc(&big,wb),"big");else big=tok;size_t n=0;double e=now()+seconds;
 if(only&&v[3][0]=='s'){while(now()<e){struct timespec z={0,1000000};nanosleep(&z,0);}}
 else while(now()<e&&n<2000000){double b=now();if(wb>4096)ok(d8(big,1,wb,s),"big");ok(d8(tok,n&255,4096,s),"work");double b1=now();ok(out(res,tok,4096,s),"token");double b2=now();ok(syncs(s),"sync");double b3=now();pw[n]=b1-b;pc[n]=b2-b1;pv[n]=b3-b2;x[n++]=b3-b;if(res[4095]!=(n-1&255)){printf("WRONG token\n");return 1;}
  struct timespec z={0,200000};nanosleep(&z,0);}
 over=1;if(only<1||v[3][0]!='i'){pthread_join(t,0);if(memcmp(src,host,BLOCKS*block)){printf("WRONG bytes\n");return 1;}}
 if(n){qsort(x,n,sizeof*x,cmp);printf("block %5zu KiB n %6zu median %8.1f p99 %8.1f max %8.1f us",block>>10,n,x[n/2]*1e6,x[n*99/100]*1e6,x[n-1]*1e6);}
 if(n){double*q[3]={pw,pc,pv};const char*nm[3]={"work","copy","wait"};for(int k=0;k<3;k++){qsort(q[k],n,sizeof*x,cmp);printf(" | %s %.1f %.1f %.1f",nm[k],q[k][n/2]*1e6,q[k][n*99/100]*1e6,q[k][n-1]*1e6);}}printf(" swap %.2f GB/s\n",took?moved/took/1e9:0);return 0;}
